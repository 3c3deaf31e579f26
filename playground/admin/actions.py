"""What staff can do to a request: cancel it while it runs, run it again. And the word that tells a page to reload.

Each needs the right to view requests and a permission of its own; only a POST with the CSRF token does anything.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.db import DatabaseError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.urls import path, reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from inference.config import ParameterError
from inference.scheduling.request import RequestRefused
from playground.admin import engines
from playground.admin.inspection import pulse_of
from playground.admin.rights import may, user_of
from playground.models import InferenceRequest

COLUMNS = ("state", "messages", "prompt", "prompt_ids", "params", "seed", "replay_of")  # what a replay needs
log = logging.getLogger("batchscope.admin")


def urls_of(model_admin: Any) -> list[Any]:
    """Addresses under a request's own, with the admin's checks around them."""

    def checked(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        def viewed(request: HttpRequest, object_id: uuid.UUID) -> HttpResponse:
            if not model_admin.has_view_permission(request):
                raise PermissionDenied
            return view(request, object_id)

        return model_admin.admin_site.admin_view(viewed)

    return [
        path("<uuid:object_id>/cancel/", checked(cancel), name="playground_inferencerequest_cancel"),
        path("<uuid:object_id>/replay/", checked(replay), name="playground_inferencerequest_replay"),
        path("<uuid:object_id>/pulse/", checked(pulse), name="playground_inferencerequest_pulse"),
    ]


@require_POST
def cancel(request: HttpRequest, object_id: uuid.UUID) -> HttpResponse:
    row = _row(request, object_id, "cancel_any")
    if row.is_final:
        messages.info(request, _("It was over already."))
    else:
        engines.cancel(row)
        log.info("cancelled_by_staff: %s by user %d", row.pk, user_of(request).pk)
        messages.success(request, _("Its end is asked for; the engine drops it within an iteration or two."))
    return _back(row)


@require_POST
def replay(request: HttpRequest, object_id: uuid.UUID) -> HttpResponse:
    row = _row(request, object_id, "replay")
    try:
        again = engines.start_replay(row, user_of(request))
    except (RequestRefused, ParameterError) as error:
        messages.error(request, _("It was not started: %s.") % error)
    except (DatabaseError, ImproperlyConfigured):
        log.exception("replay_failed", extra={"code": "engine_unavailable"})
        messages.error(request, _("It was not started: the service can't take requests just now. Try again later."))
    else:
        log.info("replayed_by_staff: %s as %s by user %d", row.pk, again.pk, user_of(request).pk)
    return _back(row)


@require_safe
def pulse(request: HttpRequest, object_id: uuid.UUID) -> HttpResponse:
    """Without a word about what was asked: this is asked for every second."""
    return JsonResponse({"pulse": pulse_of(_found(object_id, "state", "cancel_requested"))})


def _row(request: HttpRequest, object_id: uuid.UUID, permission: str) -> InferenceRequest:
    if not may(request, permission):
        raise PermissionDenied
    return _found(object_id)


def _found(object_id: uuid.UUID, *columns: str) -> InferenceRequest:
    row = InferenceRequest.objects.only(*columns or COLUMNS).filter(pk=object_id).first()
    if row is None:
        raise Http404
    return row


def _back(row: InferenceRequest) -> HttpResponse:
    return HttpResponseRedirect(reverse("admin:playground_inferencerequest_change", args=(row.pk,)))
