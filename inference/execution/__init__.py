"""The room with tensors: batches, KV cache, models, runner, sampler.

Importing anything here decides how OpenMP's threads wait between operators, which they read once, when torch is loaded.
A forward pass is hundreds of short parallel regions. Threads that spin between them take the cores from the web
process, the browser and each other; where anything else runs, sleeping ones are several times faster.
See docs/decisions/0006-passive-threads.md.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
