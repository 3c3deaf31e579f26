"""W1, the burst by which engines are compared: 64 requests at once, lognormal lengths; and one stream alone.

    python -m bench.burst [--model MODEL] [--dtype DTYPE] [--peer "COMMAND"]...

Output tokens a second through Engine.generate, greedy, EOS ignored, on a machine that does nothing else. A --peer is a
command that prints one JSON line with `system`, `w1` and `single`; it is run after ours, then ours again, so that what
is quoted is a ratio of one run.
"""

from __future__ import annotations

import argparse
import json
import random
import shlex
import statistics
import subprocess
import time
from typing import Any

from inference import Engine, EngineConfig, SamplingParams

VOCABULARY = 49152
PHASES = ("schedule", "forward", "sample", "commit")
Request = tuple[list[int], int]  # prompt ids, tokens wanted


def burst(count: int = 64, seed: int = 0, longest_prompt: int = 512, longest_output: int = 384) -> list[Request]:
    """The same requests for every system: 6,789 prompt tokens and 6,893 output tokens with the defaults."""
    rng = random.Random(seed)
    requests = []
    for _ in range(count):
        prompt = max(8, min(longest_prompt, int(rng.lognormvariate(4.3, 0.8))))
        output = max(4, min(longest_output, int(rng.lognormvariate(4.2, 0.9))))
        requests.append(([rng.randrange(100, VOCABULARY) for _ in range(prompt)], output))
    return requests


def tokens_per_second(engine: Engine, requests: list[Request]) -> float:
    params = [SamplingParams(max_tokens=wanted, temperature=0, ignore_eos=True) for _, wanted in requests]
    begun = time.perf_counter()
    outputs = engine.generate([prompt for prompt, _ in requests], params)
    return sum(len(output.token_ids) for output in outputs) / (time.perf_counter() - begun)


def measure(engine: Engine) -> dict[str, Any]:
    """W1, one stream of 128 tokens, and where a full iteration's time goes (medians in ms)."""
    tokens_per_second(engine, burst(8, seed=9))  # warm: kernels built, memory touched
    w1 = tokens_per_second(engine, burst())
    full = [r for r in engine.ledger.records if len(r.rows) >= 32 and all(row.kind == "decode" for row in r.rows)]
    single = tokens_per_second(engine, [(burst()[0][0], 128)])
    phases = {name: round(statistics.median(getattr(r, name) for r in full), 2) for name in PHASES} if full else {}
    rows = round(statistics.mean(len(r.rows) for r in full)) if full else 0
    return {"system": "batchscope", "w1": round(w1, 1), "single": round(single, 1), "decode_rows": rows, "ms": phases}


def peer(command: str) -> dict[str, Any]:
    """The last JSON line that a peer's script prints."""
    run = subprocess.run(shlex.split(command), capture_output=True, text=True, check=True)
    return json.loads([line for line in run.stdout.splitlines() if line.startswith("{")][-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    parser.add_argument("--peer", action="append", default=[], metavar="COMMAND")
    options = parser.parse_args()
    engine = Engine(EngineConfig(model=options.model, dtype=options.dtype))
    ours = measure(engine)
    print(json.dumps(ours), flush=True)
    for command in options.peer:
        theirs = peer(command)
        again = measure(engine)
        ratios = {key: round((ours[key] + again[key]) / 2 / theirs[key], 2) for key in ("w1", "single")}
        print(json.dumps(theirs))
        print(json.dumps(again))
        print(json.dumps({"ratio_to": theirs["system"], **ratios}), flush=True)
        ours = again


if __name__ == "__main__":
    main()
