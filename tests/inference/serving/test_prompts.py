"""What a submission becomes before an engine sees it."""

from __future__ import annotations

import pytest
from support.fake_engine import FakeTokenizer

from inference.config import ParameterError, RequestRefused, SamplingParams
from inference.execution.models.prepare import prepare_model
from inference.serving.messages import Submission
from inference.serving.prompts import is_slow, render
from inference.text.grammar import compile_grammar
from inference.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(prepare_model("smollm2"))


def test_ids_and_parameters() -> None:
    rendered = render(FakeTokenizer(), Submission("r", {"seed": 1, "n": 1}, prompt="a b a"))
    assert rendered == ([0, 1, 0], SamplingParams(seed=1), None)
    assert not is_slow(FakeTokenizer(), Submission("r", {"seed": 1, "response_format": None}, prompt="a"))


def test_a_format_is_compiled(tokenizer: Tokenizer) -> None:
    params = SamplingParams(response_format={"type": "regex", "regex": "yes|no"}).to_mapping()
    submission = Submission("r", params, prompt="a")
    assert is_slow(tokenizer, submission)
    rendered = render(tokenizer, submission)
    assert not is_slow(tokenizer, submission), "the second one need not wait behind formats that are new"
    assert rendered.grammar is compile_grammar({"type": "regex", "regex": "yes|no"}, tokenizer)


def test_a_format_that_cannot_be_is_refused(tokenizer: Tokenizer) -> None:
    params = {"response_format": {"type": "regex", "regex": "(yes"}}
    with pytest.raises(RequestRefused, match="unclosed group") as refused:
        render(tokenizer, Submission("r", params, prompt="a"))
    assert refused.value.code == "bad_params"
    assert not is_slow(tokenizer, Submission("r", {"response_format": {"type": "regex", "regex": 5}}, prompt="a"))


@pytest.mark.parametrize("params", [5, None, [1], {"response_format": {"type": "xml"}}, {"nonsense": 1}])
def test_what_is_no_parameters(params: object) -> None:
    with pytest.raises(ParameterError):
        render(FakeTokenizer(), Submission("r", params, prompt="a"))  # type: ignore[arg-type]
