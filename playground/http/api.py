"""The chat page's JSON API: conversations of the signed-in user, under the session's cookie and CSRF token.

A conversation of somebody else does not exist here: 404, like one that never was.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from asgiref.sync import async_to_sync
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext
from django.views import View

from playground.conversations import TITLE_LENGTH, conversation_json, conversations_of, one_line, turn_json, unfinished
from playground.gateway import get_gateway
from playground.http.errors import json_error, method_not_allowed
from playground.http.requests import UserRequest
from playground.models import Conversation

LIST_LIMIT = 1000
log = logging.getLogger(__name__)


class BadBody(ValueError):
    """What was sent can't be used. `code` is one of the contract's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class JSONView(View):
    def http_method_not_allowed(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return method_not_allowed(
            request, ", ".join(name.upper() for name in self.http_method_names if hasattr(self, name))
        )

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().dispatch(request, *args, **kwargs)
        except BadBody as error:
            return json_error(error.code, str(error))
        except Conversation.DoesNotExist:
            return json_error("not_found", _("There is no such conversation."))


class Conversations(JSONView):
    def get(self, request: UserRequest) -> HttpResponse:
        rows = conversations_of(request.user)[:LIST_LIMIT]
        return JsonResponse({"conversations": [conversation_json(row) for row in rows]})

    def post(self, request: UserRequest) -> HttpResponse:
        row = Conversation.objects.create(owner=request.user, title=_title(_body(request), required=False))
        return JsonResponse(conversation_json(row), status=201)


class OneConversation(JSONView):
    def get(self, request: UserRequest, conversation_id: str) -> HttpResponse:
        row = conversations_of(request.user).get(pk=conversation_id)
        turns = [turn_json(turn) for turn in row.requests.order_by("created_at") if turn.is_kept]
        return JsonResponse({**conversation_json(row), "turns": turns})

    def patch(self, request: UserRequest, conversation_id: str) -> HttpResponse:
        title = _title(_body(request), required=True)
        row = conversations_of(request.user).get(pk=conversation_id)
        row.title = title
        row.save(update_fields=["title"])
        return JsonResponse(conversation_json(row))

    def delete(self, request: UserRequest, conversation_id: str) -> HttpResponse:
        """Deletes the conversation and what was said in it. Answers still on their way are cancelled first."""
        row = conversations_of(request.user).get(pk=conversation_id)
        for pk in list(unfinished(row).values_list("pk", flat=True)):
            _cancel(request.user, str(pk))
        row.delete()
        return HttpResponse(status=204)


def _cancel(user: Any, request_id: str) -> None:
    """Best effort: without its broker the service still deletes what its user wants deleted."""
    try:
        async_to_sync(get_gateway().cancel)(user, request_id)
    except Exception:
        log.exception("cancel_failed", extra={"code": "internal"})


def _body(request: HttpRequest) -> dict[str, Any]:
    try:
        data = json.loads(request.body or b"{}")
    except (ValueError, RecursionError):
        raise BadBody("bad_json", _("The body is not JSON.")) from None
    if not isinstance(data, dict):
        raise BadBody("bad_message", _("The body must be a JSON object."))
    if strangers := sorted(set(data) - {"title"}):
        raise BadBody("bad_message", _("There is no field %r here; there is: title.") % strangers[0][:40])
    return data


def _title(data: dict[str, Any], *, required: bool) -> str:
    title = data.get("title", None if required else "")
    if not isinstance(title, str) or any(character == "\0" or "\ud800" <= character <= "\udfff" for character in title):
        raise BadBody("bad_message", _("The title must be text."))
    line = one_line(title, len(title) + 1)
    if required and not line:
        raise BadBody("bad_message", _("The title is empty."))
    if len(line) > TITLE_LENGTH:
        words = ngettext(
            "The title has %d character; at most %d fit.", "The title has %d characters; at most %d fit.", len(line)
        )
        raise BadBody("bad_message", words % (len(line), TITLE_LENGTH))
    return line
