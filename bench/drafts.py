"""Where guessing ahead helps: tokens/s of one stream with and without drafts looked up in the prompt.

Knows: the prompts, the engine. Must not know: how drafts are made. Answers end where the model ends them: past that
end they repeat themselves, and drafts would be praised for it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from inference import Engine, SamplingParams

PROMPTS = Path(__file__).resolve().parent / "data" / "drafts.json"
DRAFT_TOKENS = 4
KINDS = {"repeats": "rewrite or quote a given text", "open": "open questions"}


@dataclass(frozen=True, slots=True)
class Drafted:
    """Tokens/s of one stream over all prompts of a kind. steps: iterations a token, with drafts.
    alike: answers that are the same, token for token, of `answers`."""

    kind: str
    plain: float
    drafted: float
    steps: float
    alike: int
    answers: int


def chats(kind: str) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": text}] for text in json.loads(PROMPTS.read_text(encoding="utf-8"))[kind]]


def compare(
    make: Callable[[int], Engine], max_tokens: int, most: int | None, say: Callable[[str], None]
) -> list[Drafted]:
    """make: an engine with that many draft tokens. most: prompts of a kind; None: all. Plain and drafted take turns."""
    plain, drafted = make(0), make(DRAFT_TOKENS)
    found = []
    for kind, words in KINDS.items():
        say(words)
        params = SamplingParams(max_tokens=max_tokens, temperature=0.0)
        prompts = [plain.tokenizer.encode_chat(chat) for chat in chats(kind)[:most]]
        for engine in (plain, drafted):
            engine.generate(prompts[:1], SamplingParams(max_tokens=4, temperature=0.0))
        seconds, tokens, steps, alike = [0.0, 0.0], [0, 0], 0, 0
        for prompt in prompts:
            answers = []
            for i, engine in enumerate((plain, drafted)):
                before, begun = _iterations(engine), time.perf_counter()
                answers.append(engine.generate([prompt], params)[0].token_ids)
                seconds[i] += time.perf_counter() - begun
                tokens[i] += len(answers[i])
                steps += (_iterations(engine) - before) * i
            alike += answers[0] == answers[1]
        plain_rate, drafted_rate = (made / spent for made, spent in zip(tokens, seconds, strict=True))
        found.append(Drafted(kind, plain_rate, drafted_rate, steps / tokens[1], alike, len(prompts)))
    return found


def _iterations(engine: Engine) -> int:
    return engine.ledger.records[-1].n if engine.ledger.records else 0
