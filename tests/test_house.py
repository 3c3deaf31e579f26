"""The house rules that no linter holds: what a web process loads, what is in the repository, what the docs promise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def tracked_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in listing.split("\0") if name and (path := ROOT / name).exists()]


def loaded_modules(statement: str) -> set[str]:
    code = f"import os, sys; os.environ['DJANGO_SETTINGS_MODULE'] = 'tests.settings'; {statement}; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(run.stderr)
    return {name.partition(".")[0] for name in run.stdout.split()}


def test_a_web_process_loads_no_torch() -> None:
    assert not {"torch", "triton", "numba", "transformers"} & loaded_modules("import playground.asgi")


def test_the_engine_loads_no_django() -> None:
    assert "django" not in loaded_modules("import inference.engine, inference.serving.worker")


def test_configuration_loads_nothing_heavy() -> None:
    assert not {"torch", "numpy", "django", "redis"} & loaded_modules("from inference import EngineConfig")


def test_relative_links_in_the_docs_lead_somewhere() -> None:
    documents = [path for path in tracked_files() if path.suffix == ".md"]
    assert documents
    broken = [
        f"{document.relative_to(ROOT)}: {target}"
        for document in documents
        for target in re.findall(r"\]\(([^)#]+)", document.read_text())
        if "://" not in target and not (document.parent / target).exists()
    ]
    assert not broken


def test_the_table_of_settings_is_the_settings_class() -> None:
    from support import settings_table

    assert settings_table.FILE.read_text() == settings_table.document()
