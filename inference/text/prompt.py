"""From chat messages to the text that is encoded: the template's pieces with control tokens, the users' without.

Knows: the form of messages, and what to do where a template has no system role. Must not know: ids, engines, sockets.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

from inference.config import RequestRefused
from inference.text.control import ControlTokens
from inference.text.template import ChatTemplate, TemplateRefusal

ROLES = ("system", "user", "assistant")


def check_messages(messages: Any) -> list[dict[str, str]]:
    """The messages as {role, content} dicts. Raises RequestRefused("bad_message") with the place of what is wrong."""
    if not isinstance(messages, (list, tuple)) or not messages:
        raise RequestRefused("bad_message", "messages must be a list with at least one message")
    return [_check_message(place, message) for place, message in enumerate(messages, 1)]


def _check_message(place: int, message: Any) -> dict[str, str]:
    if not isinstance(message, dict):
        raise RequestRefused("bad_message", f"message {place} must be an object with role and content")
    role, content = message.get("role"), message.get("content")
    if role not in ROLES:
        allowed = ", ".join(ROLES)
        raise RequestRefused("bad_message", f"message {place} has the role {role!r:.40}; it must be one of: {allowed}")
    if not isinstance(content, str):
        raise RequestRefused("bad_message", f"the content of message {place} must be a string")
    return {"role": role, "content": content}


def render_chat(template: ChatTemplate, control: ControlTokens, messages: Sequence[dict[str, str]]) -> str:
    """Checked messages as text that ends where the assistant begins; the template's control tokens under their names.

    Raises RequestRefused("bad_message") where the template does not take these messages.
    """
    marked = [{"role": m["role"], "content": control.mark(m["content"])} for m in messages]
    try:
        return control.resolve(template.render(marked))
    except TemplateRefusal as refusal:
        reason = refusal
    if marked[0]["role"] == "system":
        try:
            return control.resolve(template.render(_without_system_role(marked)))
        except TemplateRefusal as refusal:
            reason = refusal
    raise RequestRefused("bad_message", f"the model's chat template does not take these messages: {reason}")


def _without_system_role(messages: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """For templates without a system role: its text opens the first user message."""
    system, *others = messages
    if not others or others[0]["role"] != "user":
        return [{"role": "user", "content": system["content"]}, *others]
    parts = [system["content"], others[0]["content"]]
    return [{"role": "user", "content": "\n\n".join(filter(None, parts))}, *others[1:]]


def chat_headers(template: ChatTemplate, control: ControlTokens) -> tuple[str, str] | None:
    """What the template writes before a user's message and before the assistant's, control tokens under their names.

    None where the template shows no such thing.
    """
    # Ends that no template's own text has, else the headers' common end could reach into a message.
    question, answer, probe = (f"{secrets.token_hex(8)}\u2021" for _ in range(3))
    one = [{"role": "user", "content": question}]
    two = [*one, {"role": "assistant", "content": answer}, {"role": "user", "content": probe}]
    try:
        opened, first, second = template.render(one), template.render(one, False), template.render(two, False)
    except TemplateRefusal:
        return None
    if not opened.startswith(first) or question not in first or probe not in second:
        return None
    before_first, before_second = first.partition(question)[0], second.partition(probe)[0]
    user = _common_end(before_first, before_second)
    assistant = opened[len(first) :]
    return (control.resolve(user), control.resolve(assistant)) if user and assistant else None


def turn_end(template: ChatTemplate, control: ControlTokens) -> str | None:
    """The control token, under its name, that the template ends an assistant's message with; None where it has none.

    Where it opens the assistant's next message (templates that always end with that), it does not end one.
    """
    question, answer = (f"{secrets.token_hex(8)}\u2021" for _ in range(2))
    try:
        written = template.render(
            [{"role": "user", "content": question}, {"role": "assistant", "content": answer}], False
        )
    except TemplateRefusal:
        return None
    _, found, rest = control.resolve(written).rpartition(answer)
    end = next((name for name in control.names.values() if found and rest.lstrip().startswith(name)), None)
    headers = chat_headers(template, control)
    return None if headers and end and end in headers[1] else end


def _common_end(one: str, other: str) -> str:
    length = 0
    while length < min(len(one), len(other)) and one[-length - 1] == other[-length - 1]:
        length += 1
    return one[len(one) - length :]
