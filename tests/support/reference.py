"""transformers' answers, and how probable it finds each of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel

from inference.scheduling.token_logprobs import TokenLogprobs


@dataclass(frozen=True)
class Expected:
    """ids: an answer, its end token included.  logprobs: float32 [len(ids), vocab], before any rule.

    gap: by which at each token the best logit is above the next one, at least. Where that is far more than rounding,
    another token is a fault.
    """

    ids: list[int]
    logprobs: torch.Tensor
    gap: float


@torch.inference_mode()
def generated(peer: PreTrainedModel, prompt: list[int], tokens: int, **rules: Any) -> Expected:
    """What `generate` answers, greedy, with its own settings for penalties and the like."""
    ids = torch.tensor([prompt])
    result = peer.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        do_sample=False,
        pad_token_id=0,
        output_scores=True,
        return_dict_in_generate=True,
        **rules,
    )
    answer = result.sequences[0, len(prompt) :].tolist()
    gap = min(_gap(scores[0]) for scores in result.scores)
    return Expected(answer, logprobs_of(peer, prompt, answer), gap)


@torch.inference_mode()
def logprobs_of(peer: PreTrainedModel, prompt: list[int], answer: list[int]) -> torch.Tensor:
    """Of every token at each place of the answer, from one forward pass over all of it."""
    logits = peer(torch.tensor([prompt + answer[:-1]]), logits_to_keep=len(answer)).logits[0]
    return logits.double().log_softmax(-1).float()


@torch.inference_mode()
def penalised(peer: PreTrainedModel, prompt: list[int], tokens: int, presence: float, frequency: float) -> Expected:
    """What the formula of OpenAI's documentation for these two penalties gives, token by token."""
    answer: list[int] = []
    gaps = []
    while len(answer) < tokens and answer[-1:] != [peer.config.eos_token_id]:
        logits = peer(torch.tensor([prompt + answer])).logits[0, -1]
        for token_id in set(answer):
            logits[token_id] -= presence + frequency * answer.count(token_id)
        gaps.append(_gap(logits))
        answer.append(int(logits.argmax()))
    return Expected(answer, logprobs_of(peer, prompt, answer), min(gaps))


def largest_difference(expected: Expected, ids: Sequence[int], ours: Sequence[TokenLogprobs], top: int) -> float:
    """Between our logprobs of an answer's tokens, or its first ones, and transformers'.

    Compared id by id; which ids are the `top` most likely is checked, too, as far as it does not hang on rounding.
    """
    assert [token.token_id for token in ours] == list(ids)
    if not ids:
        return 0.0
    theirs = expected.logprobs[: len(ids)]
    values = torch.tensor([[token.logprob, *(value for _, value in token.top)] for token in ours])
    names = torch.tensor([[token.token_id, *(name for name, _ in token.top)] for token in ours])
    assert values.shape == (len(ids), 1 + top)
    assert all(len({name for name, _ in token.top}) == top for token in ours)
    assert (values[:, 1:].diff() <= 0).all(), "most likely first"
    by_id = (values - theirs.gather(1, names)).abs().max()
    by_place = (values[:, 1:] - theirs.topk(top).values).abs().max()
    return float(torch.maximum(by_id, by_place))


def _gap(logits: torch.Tensor) -> float:
    best, second = logits.topk(2).values.tolist()
    return best - second
