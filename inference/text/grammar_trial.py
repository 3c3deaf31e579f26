"""Compile a grammar where that can be cut short: run as a program, this reads one grammar and tries it.

Knows: llguidance and its limits, the operating system's limits. Must not know: anything else of this project, so that
the program starts in no time. A thread can't be stopped, and llguidance's own limits leave gaps: 30,000 times `a?`
takes 17 s and 3.5 GB, a large multipleOf minutes. So each new grammar is tried here first; what ends in good time here
does so there.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import struct
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

CPU_SECONDS = 1.0  # to compile and take some steps; then the engine compiles it again
MOST_MEMORY = 1 << 30
PATIENCE = 20.0  # seconds in all, on a machine that has no time for us
STEPS = 16

TOO_LONG = f"it takes more than {CPU_SECONDS:g} s to compile; use a simpler one"
TOO_BIG = "it needs too much memory to compile; use a simpler one"
EMPTY = "no text can match it"


class _Tokens:
    """What llguidance asks of a tokenizer; it is never called to encode, see `no_forcing` in grammar_source."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids: Sequence[int] = ()

    def __init__(self, tokens: Sequence[bytes], end_id: int) -> None:
        self.tokens, self.eos_token_id = tokens, end_id

    def __call__(self, text: str) -> list[int]:
        return []


def compiled_vocabulary(tokens: Sequence[bytes], end_id: int) -> Any:
    """llguidance's form of a vocabulary; the bytes of each id, and the id of the end."""
    from llguidance import LLTokenizer

    return LLTokenizer(_Tokens(tokens, end_id), n_vocab=len(tokens), eos_token=end_id)  # type: ignore[arg-type]


def compiled_grammar(vocabulary: Any, source: str) -> Any:
    """A matcher at the start of a text, with its first mask made. `get_error()` tells what is wrong, if anything is.

    Limits: a step takes some 20 ms at most (its own fuel), a request some 50 MB of states.
    """
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(step_lexer_fuel=200_000, max_lexer_states=30_000, verbose_errors=False)
    matcher = LLMatcher(vocabulary, source, log_level=0, limits=limits)
    if not matcher.get_error():
        matcher.compute_bitmask()
    return matcher


def packed(tokens: Sequence[bytes], end_id: int) -> bytes:
    """A vocabulary for the other process: how many tokens, the end's id, the lengths, the bytes."""
    return struct.pack(f"<II{len(tokens)}I", len(tokens), end_id, *map(len, tokens)) + b"".join(tokens)


def _unpacked(data: bytes) -> tuple[list[bytes], int]:
    count, end_id = struct.unpack_from("<II", data)
    place, tokens = 8 + 4 * count, []
    for length in struct.unpack_from(f"<{count}I", data, 8):
        tokens.append(data[place : place + length])
        place += length
    return tokens, end_id


def try_grammar(vocabulary: bytes, source: str) -> str:
    """Compile `source` and take some steps in a process of its own, with bounded time and memory; what is wrong, or "".

    vocabulary: `packed`.
    """
    encoded = source.encode()
    given = struct.pack("<I", len(encoded)) + encoded + vocabulary
    try:
        done = subprocess.run(
            [sys.executable, "-P", __file__],
            input=given,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
            start_new_session=True,  # a Ctrl-C that ends the engine is no verdict on a grammar
        )
    except subprocess.TimeoutExpired:
        return TOO_LONG
    if done.returncode == 0:
        return json.loads(done.stdout)
    return TOO_LONG if done.returncode == -signal.SIGPROF else TOO_BIG


def _try(source: str, vocabulary: Any, end_id: int) -> str:
    matcher = compiled_grammar(vocabulary, source)
    chance = random.Random(0)
    for step in range(STEPS):
        if error := matcher.get_error():
            return EMPTY if "NoExtension" in error else error
        mask = matcher.compute_bitmask()
        places = [place for place, byte in enumerate(mask) if byte]
        if matcher.is_stopped() or not places:
            return "" if step or matcher.is_accepting() else EMPTY
        place = chance.choice(places)
        token_id = 8 * place + chance.choice([bit for bit in range(8) if mask[place] >> bit & 1])
        if token_id == end_id:
            return ""
        matcher.consume_token(token_id)
    return matcher.get_error()


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    given = sys.stdin.buffer.read()
    (length,) = struct.unpack_from("<I", given)
    tokens, end_id = _unpacked(given[4 + length :])
    vocabulary = compiled_vocabulary(tokens, end_id)
    signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # its signal ends the process
    print(json.dumps(_try(given[4 : 4 + length].decode(), vocabulary, end_id)))


if __name__ == "__main__":
    main()
