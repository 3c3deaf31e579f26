"""Run a command that dies with the process that started it, however that one dies: `tether.py PARENT COMMAND...`.

Started as a plain script (python -I -S), so it must import nothing of this project. The kernel sends SIGKILL when the
parent is gone (PR_SET_PDEATHSIG survives exec); a parent that was gone before this was set is seen by its number.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
