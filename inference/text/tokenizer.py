"""The tokenizer of a model folder: text and chats to ids, ids to text.

Knows: tokenizer.json and the files beside it. Must not know: torch, transformers (importing it costs 3 s), requests.
Two tokenizers are made of one file: the plain one decodes; in the other, control tokens go by unguessable names, and it
alone encodes (see `inference.text.control`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from inference.config import RequestRefused
from inference.text.control import ControlTokens, scrub
from inference.text.errors import TokenizerError
from inference.text.pieces import Pieces
from inference.text.prompt import chat_headers, check_messages, render_chat, turn_end
from inference.text.template import ChatTemplate

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


def load_tokenizer(folder: Path | str) -> Tokenizer:
    """Read tokenizer.json, and what is there of tokenizer_config.json, special_tokens_map.json, chat_template.jinja,
    generation_config.json and config.json. Raises TokenizerError with one sentence."""
    folder = Path(folder)
    spec = _read_json(folder / "tokenizer.json")
    if spec is None:
        raise TokenizerError(_without_tokenizer(folder))
    try:
        config: dict[str, Any] = {}
        for name in ("special_tokens_map.json", "tokenizer_config.json"):
            config |= _read_json(folder / name) or {}
        _add_missing_tokens(spec, config)
        made = Tokenizer(spec, _named_tokens(config), _template_source(folder, config), _eos_ids(folder))
    except TokenizerError:
        raise
    except Exception as error:  # tokenizers raises bare Exceptions; a file of the wrong shape, KeyError and its like
        raise TokenizerError(f"the tokenizer in {folder} can't be used: {_one_line(error)}.") from error
    _check_width(folder, made.vocab_size)
    return made


class Tokenizer:
    """Encodes and decodes. Safe to use from several threads; encoding releases the GIL.

    vocab_size: ids are below it (the model's logits may be wider).  eos_token_ids: ids that end an answer: those given,
    the EOS token, and what the chat template ends an assistant's message with.
    special_ids: never shown.  control_ids: never made from user text; holds the special ids.
    """

    def __init__(
        self, spec: dict[str, Any], named_tokens: dict[str, str], template: str | None, eos_ids: Sequence[int] = ()
    ) -> None:
        """`spec` is the content of tokenizer.json and is altered. `template` is jinja source."""
        spec.update(truncation=None, padding=None)
        plain = tokenizers.Tokenizer.from_str(json.dumps(spec))
        self._plain = plain
        self._control = ControlTokens(spec.get("added_tokens", ()))
        self.pieces = Pieces(plain, spec.get("decoder"))
        self._named = tokenizers.Tokenizer.from_str(json.dumps(self._control.rename(spec)))
        self._template = None if template is None else ChatTemplate(template, named_tokens)
        self.special_ids = self.pieces.special_ids
        self.control_ids = frozenset(i for token in self._control.names if (i := plain.token_to_id(token)) is not None)
        self.vocab_size: int = max(plain.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        ends = [*eos_ids, plain.token_to_id(named_tokens.get("eos_token", "")), self._turn_end()]
        self.eos_token_ids = frozenset(i for i in ends if i is not None and 0 <= i < self.vocab_size)

    def encode_text(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Ids of a raw prompt; control tokens in it stay text. `add_special_tokens`: a BOS where the model has one."""
        return self._encode(scrub(text), add_special_tokens)

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Ids of a chat, up to where the assistant answers. For ordinary text they equal those of transformers'
        `apply_chat_template`. Raises RequestRefused("bad_message")."""
        checked = check_messages(messages)
        if self._template is None:
            raise RequestRefused("bad_message", "this model has no chat template; send a prompt instead of messages")
        return self._encode(render_chat(self._template, self._control, checked), False)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, without special tokens."""
        return self._plain.decode(list(ids), skip_special_tokens=True)

    def encode_named(self, text: str) -> list[int]:
        """Ids of what `decode_named` gives."""
        return self._encode(text, False)

    def decode_named(self, ids: Sequence[int]) -> str:
        """Text of `ids` with control tokens under their names, so that none is mistaken for text that looks like it."""
        return self._named.decode(list(ids), skip_special_tokens=False)

    @property
    def control_names(self) -> frozenset[str]:
        return frozenset(self._control.names.values())

    @cached_property
    def chat_headers(self) -> tuple[str, str] | None:
        """How a user's and the assistant's messages begin, as `decode_named` has it; None where it can't be told."""
        return None if self._template is None else chat_headers(self._template, self._control)

    def _turn_end(self) -> int | None:
        name = None if self._template is None else turn_end(self._template, self._control)
        return None if name is None else self._named.token_to_id(name)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        # encode() would hold the GIL: a second for 2 MB of text.
        return self._named.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} can't be read as JSON: {error}.") from error


def _add_missing_tokens(spec: dict[str, Any], config: dict[str, Any]) -> None:
    """Added tokens that only tokenizer_config.json knows, as transformers adds them."""
    there = {token["content"] for token in spec.setdefault("added_tokens", [])}
    for index, token in sorted(config.get("added_tokens_decoder", {}).items(), key=lambda item: int(item[0])):
        if token["content"] not in there:
            flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
            given = {key: value for key, value in token.items() if key in flags or key == "content"}
            spec["added_tokens"].append({**flags, **given, "id": int(index)})


def _named_tokens(config: dict[str, Any]) -> dict[str, str]:
    values = {role: config.get(role) for role in NAMED_TOKENS}
    texts = {role: value.get("content") if isinstance(value, dict) else value for role, value in values.items()}
    return {role: text for role, text in texts.items() if isinstance(text, str)}


def _template_source(folder: Path, config: dict[str, Any]) -> str | None:
    """The chat template: a file of its own comes before the one in tokenizer_config.json."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = next((entry.get("template") for entry in template if entry.get("name") == "default"), None)
    return template if isinstance(template, str) else None


def _eos_ids(folder: Path) -> list[int]:
    """Ids that end an answer in generation_config.json and config.json: one or a list of them."""
    found: list[Any] = []
    for name in ("generation_config.json", "config.json"):
        value = (_read_json(folder / name) or {}).get("eos_token_id")
        found += value if isinstance(value, list) else [value]
    return [index for index in found if type(index) is int]


def _check_width(folder: Path, vocab_size: int) -> None:
    """Raises TokenizerError where the tokenizer makes ids that the model of the folder does not have."""
    width = (_read_json(folder / "config.json") or {}).get("vocab_size")
    if type(width) is int and width < vocab_size:
        raise TokenizerError(
            f"the tokenizer in {folder} has ids up to {vocab_size - 1}, and its model has {width} ids; they don't go "
            "together."
        )


def _without_tokenizer(folder: Path) -> str:
    other = next((name for name in ("tokenizer.model", "vocab.json", "vocab.txt") if (folder / name).is_file()), None)
    if other is None:
        return f"there is no tokenizer.json in {folder}."
    return f"there is no tokenizer.json in {folder}, only {other}; save the tokenizer with transformers to make one."


def _one_line(error: Exception) -> str:
    text = " ".join(f"{error}".split()).rstrip(".")
    return text if isinstance(error, ValueError) or type(error) is Exception else f"{type(error).__name__} {text}"
