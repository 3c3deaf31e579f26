"""Builds the C++ kernels at first use and keeps the library in the user's cache folder.

Knows: compiler, flags, the cache and its key. Must not know: what the kernels compute.
The key is a hash of sources, flags, compiler and CPU, so a changed one of these builds anew. The library is written to
a temporary name and renamed, so that two processes that build at once cannot harm each other.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch  # loads its OpenMP runtime, the one our library must share

log = logging.getLogger(__name__)
SOURCES = ("paged_attention.cpp", "elementwise.cpp", "decoder.cpp")
HEADERS = ("simd.hpp", "rows.hpp", "attention.hpp", "gemm.hpp", "gemm_q4.hpp")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-fPIC", "-shared")
COMPILE_SECONDS = 180


def load_library() -> ctypes.CDLL | None:
    """The C++ kernels, built if they are not in the cache; None, and one line in the log, where that is impossible."""
    compiler = find_compiler()
    if compiler is None:
        log.info("no C++ compiler: CPU kernels run on numba, which is slower")
        return None
    try:
        return _load(compiler)
    except (OSError, subprocess.SubprocessError) as error:
        output = getattr(error, "stderr", None) or str(error)
        log.warning(
            "kernels_not_built: the C++ kernels could not be built, so CPU kernels run on numba, slower; %s",
            output[-2000:],
        )
        return None


def find_compiler() -> str | None:
    """The C++ compiler: $CXX where set, else g++ or c++ on PATH."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "c++"]
    return next((path for name in names if (path := shutil.which(name))), None)


def cache_folder() -> Path:
    """Where built libraries are kept. A library is code: the folder is the user's own, mode 700."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "batchscope" / "kernels"


def build(compiler: str, target: Path) -> None:
    """Compile the sources into target. Raises CalledProcessError with the compiler's words, or TimeoutExpired."""
    folder = Path(__file__).parent
    command = [compiler, *FLAGS, *(str(folder / name) for name in SOURCES), "-o", str(target), *_openmp_runtime()]
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_SECONDS)


def cache_key(compiler: str) -> str:
    """Hash of everything that the library depends on."""
    version = subprocess.run([compiler, "--version"], check=True, capture_output=True, timeout=30).stdout
    digest = hashlib.sha256(version)
    for name in SOURCES + HEADERS:
        digest.update((Path(__file__).parent / name).read_bytes())
    digest.update(repr((compiler, FLAGS, _cpu(), _openmp_runtime())).encode())
    return digest.hexdigest()[:24]


def _load(compiler: str) -> ctypes.CDLL:
    name = f"kernels-{cache_key(compiler)}.so"
    try:
        folder = cache_folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_uid != os.getuid() or not os.access(folder, os.W_OK):
            raise PermissionError(f"{folder} is not this user's own")
    except (OSError, RuntimeError):  # no home, or one that cannot be written to: build for this process alone
        with tempfile.TemporaryDirectory() as private:
            build(compiler, Path(private) / name)
            return ctypes.CDLL(str(Path(private) / name))
    library = folder / name
    if not library.exists():
        with tempfile.TemporaryDirectory(dir=folder) as private:
            build(compiler, Path(private) / name)
            os.replace(Path(private) / name, library)
    return ctypes.CDLL(str(library))


def _openmp_runtime() -> list[str]:
    """torch's own libgomp, linked by path: two runtimes would mean two pools of spinning threads."""
    return [str(path) for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))][:1]


def _cpu() -> str:
    """The CPU's name and instruction sets; -march=native means these."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({line for line in lines if line.startswith(wanted)}))
