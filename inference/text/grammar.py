"""Holding an answer to a format: which tokens may come next.

Knows: vocabularies, compiled grammars, where in its format an answer is. Must not know: torch, requests, the sampler.
llguidance does the work: an Earley parser over lexemes, whose masks are made while it walks the trie of the vocabulary.

`compile_grammar` may run in any thread, off the step; a GrammarState belongs to one thread.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from inference.config import RequestRefused
from inference.text.grammar_source import error_sentence, grammar_source
from inference.text.grammar_trial import EMPTY, compiled_grammar, try_grammar
from inference.text.grammar_vocabulary import GrammarTokenizer, Vocabulary, bitmask

MOST_KEPT = 64  # compiled grammars of one tokenizer

Mask = npt.NDArray[np.int32]


class GrammarError(ValueError):
    """A token that the format does not allow, or a format that can't go on. The message is one sentence."""


class GrammarLimit(GrammarError):
    """The format has become too complex to be followed: whoever chose it should choose a simpler one."""


def compile_grammar(response_format: dict[str, Any], tokenizer: GrammarTokenizer) -> Grammar:
    """The grammar of a format as `SamplingParams.response_format` has it; the same one for the same format.

    A new one takes some 0.3 s, and 4 s at most on a machine that isn't busy; call it off the step. Raises
    RequestRefused("bad_params") for a format that is wrong, too large, takes too long, or that no text matches.
    """
    with _lock:
        compiler = _compilers.get(tokenizer)
        if compiler is None:
            compiler = _compilers[tokenizer] = _Compiler(tokenizer)
    return compiler.compile(response_format)


def is_compiled(response_format: dict[str, Any], tokenizer: GrammarTokenizer) -> bool:
    """Whether `compile_grammar` would answer at once, be it with a refusal."""
    with _lock:
        compiler = _compilers.get(tokenizer)
    return compiler is not None and compiler.knows(response_format)


class Grammar:
    """A compiled format. Requests share it; each has a state of its own."""

    def __init__(self, matcher: Any, vocabulary: Vocabulary, end_ids: frozenset[int]) -> None:
        self._matcher, self._vocabulary, self._end_ids = matcher, vocabulary, end_ids
        self._lock = threading.Lock()

    def start(self, end_ids: Iterable[int] = ()) -> GrammarState:
        """The start of an answer. `end_ids`: ids that may end it beside the tokenizer's own EOS ids."""
        with self._lock:
            return GrammarState(self._matcher.deep_copy(), self._vocabulary, self._end_ids.union(end_ids))


class GrammarState:
    """Where one answer is in its format."""

    def __init__(self, matcher: Any, vocabulary: Vocabulary, end_ids: frozenset[int]) -> None:
        self._matcher, self._vocabulary, self._end_ids = matcher, vocabulary, end_ids
        self._is_first = True
        self._has_end = False
        self._mask: Mask | None = None

    def mask(self) -> Mask:
        """Ids that may come next: int32 [ceil(ids / 32)], bit i % 32 of word i // 32 for id i, not to be written to.

        `ids` covers the tokenizer's ids and the end ids. The model's logits may be wider: an id behind the mask's end
        is not allowed. The end ids are allowed exactly where the text so far is complete, other control tokens never.
        Raises GrammarError where nothing can follow, since the vocabulary can't spell it, and GrammarLimit.
        """
        if self._mask is None:
            self._mask = self._made_mask()
        return self._mask

    def advance(self, token_id: int) -> None:
        """Take the next token. Raises GrammarError, and nothing has changed, where it is not allowed; GrammarLimit."""
        if token_id in self._end_ids:
            if not self._is_complete():
                raise GrammarError(f"token {token_id} ends an answer that is not complete in its format")
            self._has_end = True
        elif self._has_end or not self._consume(token_id):
            self._check_limits()
            raise GrammarError(f"token {token_id} is not allowed by the answer's format")
        self._is_first = False
        self._mask = None

    @property
    def ended(self) -> bool:
        """Whether nothing but the end can follow, so that the answer is over even where EOS is ignored."""
        if self._has_end:
            return True
        return self._is_complete() and not (self.mask() & ~self._ends).any()

    def _consume(self, token_id: int) -> bool:
        vocabulary = self._vocabulary
        if not 0 <= token_id < vocabulary.size:
            return False
        if self._is_first:
            if token_id in vocabulary.silent:
                return bool(self._texts().any())
            token_id = vocabulary.id_as_first(token_id)
        return self._matcher.try_consume_tokens([token_id]) == 1

    def _is_complete(self) -> bool:
        return self._has_end or self._matcher.is_accepting()

    @cached_property
    def _ends(self) -> Mask:
        return bitmask(sorted(self._end_ids), max([self._vocabulary.size, *(i + 1 for i in self._end_ids)]))

    def _texts(self) -> Mask:
        """Ids of the tokenizer that may come next."""
        raw = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.int32)
        self._check_limits()
        vocabulary = self._vocabulary
        texts = raw[: len(vocabulary.texts)] & vocabulary.texts
        if not self._is_first or not len(vocabulary.firsts):
            return texts
        bits = np.unpackbits(raw.view(np.uint8), bitorder="little")
        text = np.unpackbits(texts.view(np.uint8), bitorder="little")
        text[vocabulary.firsts] = bits[vocabulary.end_id + 1 :][: len(vocabulary.firsts)]
        text[vocabulary.silent] = texts.any()  # after those it goes on with what may follow in a text
        return np.packbits(text, bitorder="little").view(np.int32)

    def _check_limits(self) -> None:
        if error := self._matcher.get_error():
            raise GrammarLimit(f"response_format: it can't be followed any further: {error_sentence(error)}")

    def _made_mask(self) -> Mask:
        mask = np.zeros_like(self._ends)
        if not self._has_end:
            texts = self._texts()
            mask[: len(texts)] = texts
            mask &= ~self._ends
        if self._is_complete():
            mask |= self._ends
        if not mask.any():
            raise GrammarError("the answer's format needs text that this model's vocabulary can't spell")
        mask.flags.writeable = False
        return mask


class _Compiler:
    """The grammars of one tokenizer, least recently used ones forgotten. What was refused is kept as its sentence."""

    def __init__(self, tokenizer: GrammarTokenizer) -> None:
        self._end_ids = frozenset(tokenizer.eos_token_ids)
        self._vocabulary = Vocabulary(tokenizer)
        self._kept: OrderedDict[str, Grammar | str] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, response_format: dict[str, Any]) -> Grammar:
        key = json.dumps(response_format)
        with self._lock:
            made = self._kept.get(key)
            if made is not None:
                self._kept.move_to_end(key)
        if made is None:
            made = self._make(grammar_source(response_format))
            with self._lock:
                self._kept[key] = made
                if len(self._kept) > MOST_KEPT:
                    self._kept.popitem(last=False)
        if isinstance(made, str):
            raise RequestRefused("bad_params", f"response_format: {made}")
        return made

    def knows(self, response_format: dict[str, Any]) -> bool:
        with self._lock:
            return json.dumps(response_format) in self._kept

    def _make(self, source: str) -> Grammar | str:
        vocabulary = self._vocabulary
        if error := try_grammar(vocabulary.packed, source):
            return error_sentence(error)
        matcher = compiled_grammar(vocabulary.compiled, source)
        if error := matcher.get_error():
            return error_sentence(error)
        grammar = Grammar(matcher, vocabulary, self._end_ids)
        try:
            grammar.start().mask()
        except GrammarError:
            return EMPTY
        return grammar


_compilers: weakref.WeakKeyDictionary[Any, _Compiler] = weakref.WeakKeyDictionary()
_lock = threading.Lock()
