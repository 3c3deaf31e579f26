"""From a submission to what an engine is asked: prompt ids, parameters, the grammar of the answer.

Knows: the forms a submission can have. Must not know: the broker, the engine. Runs off the event loop and off the step
thread: a long prompt takes long to tokenise, and a grammar to compile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from inference.config import ParameterError, SamplingParams
from inference.serving.messages import Submission

if TYPE_CHECKING:
    from inference.text.grammar import Grammar


class Tokenizer(Protocol):
    def encode_text(self, text: str) -> list[int]: ...

    def encode_chat(self, messages: list[dict[str, str]]) -> list[int]: ...


class Rendered(NamedTuple):
    prompt_ids: Sequence[int]
    params: SamplingParams
    grammar: Grammar | None


def render(tokenizer: Any, submission: Submission) -> Rendered:
    """All that the engine is asked. Raises ParameterError or RequestRefused where the submission is wrong."""
    try:
        params = SamplingParams.from_mapping(submission.params)
    except TypeError:
        raise ParameterError("params must be an object of sampling parameters") from None
    return Rendered(_prompt_ids(tokenizer, submission), params, _grammar(tokenizer, params))


def is_slow(tokenizer: Any, submission: Submission) -> bool:
    """Whether `render` may take seconds: there is a format, and it was not compiled before."""
    if not isinstance(submission.params, dict) or submission.params.get("response_format") is None:
        return False
    from inference.text.grammar import is_compiled

    try:
        response_format = SamplingParams.from_mapping(submission.params).response_format
    except (ParameterError, TypeError):
        return False  # `render` says what is wrong, and that takes no time
    return response_format is not None and not is_compiled(response_format, tokenizer)


def _grammar(tokenizer: Any, params: SamplingParams) -> Grammar | None:
    if params.response_format is None:
        return None
    from inference.text.grammar import compile_grammar

    return compile_grammar(params.response_format, tokenizer)


def _prompt_ids(tokenizer: Tokenizer, submission: Submission) -> Any:
    if submission.prompt_ids is not None:
        return submission.prompt_ids
    if submission.messages is not None:
        return tokenizer.encode_chat(submission.messages)
    if submission.prompt is not None:
        return tokenizer.encode_text(submission.prompt)
    raise ParameterError("a request needs messages or a prompt")
