"""Control tokens, and how text that a person typed is kept from becoming one.

Knows: which added tokens of a tokenizer are control tokens, how user text is marked before a template sees it, how the
template's own control tokens are told from the user's afterwards. Must not know: jinja, models, ids.

The encoding tokenizer knows each control token under an unguessable name only, so no text of a user can spell one.
In the rendered chat, what the template wrote gets its name and what the user wrote stays text. Then all is encoded in a
single pass, so ordinary chats get exactly the ids that the unaltered tokenizer would give.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from typing import Any

# Lone surrogates: text from the outside never holds them (`scrub`), and no encoding can carry them.
START, END, BREAK = "\udffd", "\udffe", "\udfff"
_SURROGATES = re.compile("[\ud800-\udfff]")


def scrub(text: str) -> str:
    """Text without lone surrogates, which no tokenizer can encode: each becomes U+FFFD."""
    return _SURROGATES.sub("\ufffd", text)


def is_control(added_token: dict[str, Any]) -> bool:
    """Special tokens, and other added tokens unless they are a plain word or a run of spaces.

    Chat formats have control tokens that are not marked special (`<tool_call>`, `<think>`, `<|fim_prefix|>`).
    """
    content = added_token["content"]
    plain = content.isalnum() or not content.replace("▁", " ").strip()
    return bool(content) and (added_token.get("special", False) or not plain)


class ControlTokens:
    """The control tokens of one tokenizer. `names` maps each to the name it has for this process."""

    def __init__(self, added_tokens: Iterable[dict[str, Any]]) -> None:
        tokens = sorted((t for t in added_tokens if is_control(t)), key=lambda t: -len(t["content"]))
        contents = [token["content"] for token in tokens]
        self.names = {content: f"<{secrets.token_hex(16)}>" for content in contents}
        any_token = "|".join(re.escape(content) for content in contents) or "(?!)"
        whole_words = "|".join(map(_pattern, tokens)) or "(?!)"
        first_characters = "".join(map(re.escape, sorted({content[0] for content in contents})))
        inner_spaces_and_token = rf"(?:(?<=\S)\s+)?(?:{any_token})(?:\s+(?=\S))?"
        self._typed = re.compile(f"({inner_spaces_and_token})|[{first_characters}]" if contents else "(?!)")
        self._rendered = re.compile(rf"{START}(?P<typed>\s*(?:{any_token})\s*){END}|(?P<written>{whole_words})")
        self._endings = tuple({content[i:] for content in contents for i in range(1, len(content))})

    def mark(self, text: str) -> str:
        """User text as a template may see it; `resolve` takes the marks out again.

        A whole control token is wrapped, so that a template that looks for one (`'</think>' in content`) still finds
        it. A break behind every other first character of one, and before an ending of one, keeps pieces of text from
        joining into a control token. Spaces that a template may trim, at the ends of the text or where it splits the
        text at a control token, have no mark outside of them.
        """
        text = scrub(text)
        marked = self._typed.sub(lambda m: f"{START}{m[0]}{END}" if m[1] else m[0] + BREAK, text)
        if not text.lstrip().startswith(self._endings):
            return marked
        inner = marked.lstrip()
        return marked[: len(marked) - len(inner)] + BREAK + inner

    def resolve(self, rendered: str) -> str:
        """A rendered chat with the template's control tokens under their names and the user's as text."""
        named = self._rendered.sub(lambda m: m["typed"] or self.names[m["written"]], rendered)
        return named.replace(START, "").replace(END, "").replace(BREAK, "")

    def rename(self, spec: dict[str, Any]) -> dict[str, Any]:
        """The tokenizer.json `spec`, altered in place, with each control token under its name and no other."""
        for token in spec.get("added_tokens", ()):
            token["content"] = self.names.get(token["content"], token["content"])
        model = spec["model"]
        vocab = model.get("vocab", {})
        if isinstance(vocab, dict):
            model["vocab"] = {self.names.get(piece, piece): index for piece, index in vocab.items()}
        else:
            model["vocab"] = [[self.names.get(piece, piece), *rest] for piece, *rest in vocab]
        if "merges" in model:
            model["merges"] = [merge for merge in model["merges"] if not self._touches(merge)]
        if model.get("unk_token") in self.names:
            model["unk_token"] = self.names[model["unk_token"]]
        return spec

    def _touches(self, merge: str | list[str]) -> bool:
        """Whether a BPE merge makes a control token or needs one: only text that spells it could come by that way."""
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        return left + right in self.names or left in self.names or right in self.names


def _pattern(token: dict[str, Any]) -> str:
    content = re.escape(token["content"])
    return rf"(?<!\w){content}(?!\w)" if token.get("single_word") else content
