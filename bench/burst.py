"""W1, the burst by which engines are compared: 64 requests at once, lognormal lengths; and one stream alone.

    python -m bench.burst [--model MODEL] [--dtype DTYPE] [--quick] [--peer "COMMAND"]...

Output tokens a second through Engine.generate, greedy, EOS ignored, on a machine that does nothing else. A --peer is a
command that prints one JSON line with `system`, `w1` and `single`; it is run after ours, then ours again, each in a
process of its own, so that what is quoted is a ratio of one run. With --quick both are a quarter as long.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from typing import Any

from bench.peers import in_turn, ratios
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


def random_ids(draw: random.Random, count: int, vocab_size: int) -> list[int]:
    """Ids of a prompt that says nothing; the first ones, among which control tokens are, stay out."""
    return [draw.randrange(min(100, vocab_size // 2), vocab_size) for _ in range(count)]


def tokens_per_second(engine: Engine, requests: list[Request]) -> float:
    params = [SamplingParams(max_tokens=wanted, temperature=0, ignore_eos=True) for _, wanted in requests]
    begun = time.perf_counter()
    outputs = engine.generate([prompt for prompt, _ in requests], params)
    return sum(len(output.token_ids) for output in outputs) / (time.perf_counter() - begun)


def measure(engine: Engine, quick: bool = False) -> dict[str, Any]:
    """W1, one stream of 128 tokens, and where a full iteration's time goes (medians in ms)."""
    tokens_per_second(engine, burst(8, seed=9))  # warm: kernels built, memory touched
    w1 = tokens_per_second(engine, burst(16 if quick else 64))
    full = [r for r in engine.ledger.records if len(r.rows) >= 32 and all(row.kind == "decode" for row in r.rows)]
    single = tokens_per_second(engine, [(burst()[0][0], 32 if quick else 128)])
    phases = {name: round(statistics.median(getattr(r, name) for r in full), 2) for name in PHASES} if full else {}
    rows = round(statistics.mean(len(r.rows) for r in full)) if full else 0
    return {"system": "batchscope", "w1": round(w1, 1), "single": round(single, 1), "decode_rows": rows, "ms": phases}


def command(model: str, dtype: str, quick: bool = False) -> list[str]:
    """The command line that measures ours in a process of its own."""
    words = [sys.executable, "-m", "bench.burst", "--model", model, "--dtype", dtype]
    return [*words, "--quick"] if quick else words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--peer", action="append", default=[], metavar="COMMAND")
    options = parser.parse_args()
    if options.peer:
        results = in_turn(command(options.model, options.dtype, options.quick), options.peer, lambda what: None)
        for result in results:
            print(json.dumps(result))
        for ratio in ratios(results):
            print(json.dumps({"ratio_to": ratio.pop("system"), **{key: round(x, 2) for key, x in ratio.items()}}))
        return
    engine = Engine(EngineConfig(model=options.model, dtype=options.dtype))
    ready_at = time.time()
    print(json.dumps({**measure(engine, options.quick), "ready_at": round(ready_at, 2)}), flush=True)


if __name__ == "__main__":
    main()
