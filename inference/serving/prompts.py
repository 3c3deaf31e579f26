"""From a submission to what an engine is asked: prompt ids and parameters.

Knows: the forms a submission can have. Must not know: the broker, the engine. Runs off the event loop and off the step
thread, since a long prompt takes long to tokenise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from inference.config import ParameterError, SamplingParams
from inference.serving.messages import Submission


class Tokenizer(Protocol):
    def encode_text(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]: ...


def render(tokenizer: Tokenizer, submission: Submission) -> tuple[Sequence[int], SamplingParams]:
    """Prompt ids and parameters. Raises ParameterError where the submission is wrong."""
    try:
        params = SamplingParams.from_mapping(submission.params)
    except TypeError:
        raise ParameterError("params must be an object of sampling parameters") from None
    return _prompt_ids(tokenizer, submission), params


def _prompt_ids(tokenizer: Tokenizer, submission: Submission) -> Any:
    if submission.prompt_ids is not None:
        return submission.prompt_ids
    if submission.messages is not None:
        return tokenizer.encode_chat(submission.messages)
    if submission.prompt is not None:
        return tokenizer.encode_text(submission.prompt)
    raise ParameterError("a request needs messages or a prompt")
