#!/usr/bin/env python
"""Django's command line for this project. `manage.py serve` starts everything."""

import os
import sys


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "playground.settings")
    try:
        from django.core.management import execute_from_command_line
    except ModuleNotFoundError as error:
        sys.exit(f"batchscope: {error.name} is not installed in this Python; run `make run`, which sets everything up")
    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
