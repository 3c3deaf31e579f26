"""Django settings of the test run: the project's own, over a data folder that is thrown away.

Loaded by pytest-django before any test module, so what must be set before an import is set here.
"""

import atexit
import logging
import os
import shutil
import tempfile

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # two runs beside each other must not spin against each other
# Kernels run in Triton's interpreter; Triton reads this once, when it is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")
_folder = tempfile.mkdtemp(prefix="batchscope-tests-")
atexit.register(shutil.rmtree, _folder, ignore_errors=True)
for _name in [name for name in os.environ if name.startswith("BATCHSCOPE_")]:
    if _name not in ("BATCHSCOPE_MODEL_CACHE", "BATCHSCOPE_KERNELS"):
        del os.environ[_name]
os.environ["BATCHSCOPE_DATA_DIR"] = _folder
# A variable of its own: a service's BATCHSCOPE_DATABASE_URL in the shell must not bring tests to its server.
if _database := os.environ.get("TEST_DATABASE_URL"):
    os.environ["BATCHSCOPE_DATABASE_URL"] = _database

from playground.settings import *  # noqa: E402, F403

if not _database:
    # A file, as in service: SQLite's shared in-memory database says "table is locked" at once where a file waits.
    DATABASES["default"]["TEST"] = {"NAME": os.path.join(_folder, "tests.sqlite3")}  # noqa: F405

logging.getLogger("httpx").setLevel(logging.WARNING)  # a line a request, also from threads that outlive a capture
