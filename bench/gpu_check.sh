#!/usr/bin/env bash
# What only a GPU can show, in one command: every Triton kernel compiled and run against its reference, then the engine
# in float32, bfloat16 and float16, with and without CUDA graphs. Arguments go to pytest. PYTHON names another Python.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-.venv/bin/python}
export TRITON_INTERPRET=0
"$python" - <<'PY'
import torch, triton
if not torch.cuda.is_available():
    raise SystemExit(f"PyTorch {torch.__version__} sees no CUDA device here")
name, capability = torch.cuda.get_device_name(), torch.cuda.get_device_capability()
print(f"{name} (compute capability {capability[0]}.{capability[1]}), PyTorch {torch.__version__}, Triton {triton.__version__}")
PY
failed=0
"$python" -m pytest -q tests/kernels -k triton "$@" || failed=1
"$python" -m pytest -q -rs -s -m gpu tests/kernels tests/inference tests/parity "$@" || failed=1
exit $failed
