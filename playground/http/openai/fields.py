"""Fields of bodies, one by one: those that are let through or refused, and the forms that some may have.

Knows: what each is about, and the words for what can't be had. Must not know: which body has which field.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, WithJsonSchema

from inference.params import MAX_TOKEN_ID

IGNORED = {
    "user": "ignored: whose request it is, the key says",
    "metadata": "ignored",
    "store": "ignored",
    "service_tier": "ignored; see `priority`",
    "safety_identifier": "ignored",
    "prompt_cache_key": "ignored: prefixes are found by their tokens",
    "prompt_cache_options": "ignored",
    "prompt_cache_retention": "ignored",
    "parallel_tool_calls": "ignored, since there are no tools",
}
_TOOLS = "this service has no tools; leave {name} out and describe in a message what the answer should hold"
_TEXT = "answers are text; leave {name} out"
REFUSED = {
    **dict.fromkeys(("tools", "tool_choice", "functions", "function_call"), _TOOLS),
    **dict.fromkeys(("audio", "modalities", "verbosity", "web_search_options"), _TEXT),
    "reasoning_effort": "the model has no reasoning effort to set; leave reasoning_effort out",
    "moderation": "answers are not moderated here; leave moderation out",
    "prediction": "predicted outputs are not supported; leave prediction out",
    "echo": "the prompt is not sent back; leave echo out, and put your prompt before the answer yourself",
    "suffix": "text can't be inserted before a suffix; leave suffix out, and put what is known into the prompt",
}
_NEUTRAL = {
    **dict.fromkeys(("tool_choice", "function_call"), ("none", "auto")),
    "modalities": (["text"],),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),  # OpenAI's default
}
_NOTHING = (None, False, [], {}, "")  # by these a client says that it does not use a field


def is_used(name: str, value: Any) -> bool:
    """Whether a field that is not supported would change anything."""
    return value not in _NOTHING and value not in _NEUTRAL.get(name, ())


def _text_of(content: Any) -> Any:
    """A message's text, also where it comes in parts."""
    if not isinstance(content, list):
        return content
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else None
            what = f"a part of type {str(kind)[:40]}" if kind != "text" else "a text part without text"
            raise ValueError(f'the content holds {what}; the model reads text only: {{"type": "text", "text": "..."}}')
        texts.append(part["text"])
    return "\n".join(texts)


def _prompts_of(prompt: Any) -> Any:
    """One or several prompts, each a text or a list of token ids, as a list."""
    many = prompt if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else [prompt]
    for one in many:
        is_text = isinstance(one, str)
        if not is_text and not (isinstance(one, list) and one and all(map(_is_token_id, one))):
            raise ValueError("the prompt must be a string, a list of strings, a list of token ids, or a list of those")
        if is_text != isinstance(many[0], str):
            raise ValueError("the prompts must all be strings, or all be lists of token ids")
    return many


def _is_token_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_TOKEN_ID


def _stops_of(stop: Any) -> Any:
    if not isinstance(stop, (str, list)) or not all(isinstance(one, str) for one in stop):
        raise ValueError("it must be a string or a list of strings")
    return [stop] if isinstance(stop, str) else stop


_TEXT_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_STRINGS = {"type": "array", "items": {"type": "string"}, "minItems": 1}
Content = Annotated[
    str,
    BeforeValidator(_text_of),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": _TEXT_PART}]}),
]
Prompts = Annotated[
    list[str] | list[list[int]],
    BeforeValidator(_prompts_of),
    WithJsonSchema({"anyOf": [{"type": "string"}, _STRINGS, _IDS, {"type": "array", "items": _IDS, "minItems": 1}]}),
]
Stop = Annotated[
    list[str],
    BeforeValidator(_stops_of),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
