"""Chat templates: jinja source from a model's folder, rendered in a sandbox with transformers' conventions.

Knows: the names and filters that templates count on. Must not know: tokens, ids, control tokens. A template comes with
a model and is code of a stranger: it sees plain strings only, in jinja's immutable sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inference.text.errors import TokenizerError

SHOWN_REASON = 200  # characters of a template's own refusal that are handed on


class TemplateRefusal(ValueError):
    """The template does not take these messages. The text is the template's own sentence."""


class _GenerationBlock(Extension):
    """`{% generation %}` marks what training learns from; here it is just its content."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    functions: dict[str, Any] = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
    environment.globals.update(functions)
    return environment


class ChatTemplate:
    """A compiled chat template. `variables` are the special tokens by role (`bos_token`, ...).

    Raises TokenizerError where `source` is no template.
    """

    def __init__(self, source: str, variables: dict[str, str]) -> None:
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateError as error:
            raise TokenizerError(f"the model's chat template is broken: {error}.") from error
        self._variables = variables

    def render(self, messages: Sequence[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """The chat as text. Raises TemplateRefusal."""
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._variables,
            )
        except jinja2.TemplateError as error:
            raise TemplateRefusal(_one_line(error.message or "no reason given")) from error
        except Exception as error:  # a stranger's code: whatever it raises, these messages can't be rendered
            raise TemplateRefusal("it failed on them") from error


def _one_line(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_REASON else text[: SHOWN_REASON - 3] + "..."
