"""The search over requests: by id (or its first characters), owner, client's label, error code; and in the texts for
those who may read them: searching a text one may not read would be a way to read it.
"""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

from django.db.models import Q, QuerySet, TextField
from django.db.models.functions import Cast

from playground.conversations import as_uuid

_BEGINNING = re.compile(r"[0-9a-f]{4,32}")


def search_requests(rows: QuerySet[Any], term: str, *, in_texts: bool) -> QuerySet[Any]:
    term = term.strip()
    if not term:
        return rows
    if whole := as_uuid(term):
        return rows.filter(pk=whole)
    found = Q(owner__username__icontains=term) | Q(ref__icontains=term) | Q(error_code__icontains=term)
    if ids := _ids_that_begin_with(term):
        found |= Q(pk__range=ids)
    if in_texts:
        # In JSON quotes are escaped, and on some databases everything but ASCII.
        spelled = {term, *(json.dumps(term, ensure_ascii=ascii)[1:-1] for ascii in (True, False))}
        rows = rows.alias(said=Cast("messages", TextField()))
        found |= Q(answer__icontains=term) | Q(prompt__icontains=term)
        for spelling in spelled:
            found |= Q(said__icontains=spelling)
    return rows.filter(found)


def looks_into_texts(term: str) -> bool:
    """Whether a search for this compares texts at all."""
    return bool(term.strip()) and as_uuid(term.strip()) is None


def _ids_that_begin_with(term: str) -> tuple[uuid.UUID, uuid.UUID] | None:
    digits = term.lower().replace("-", "")
    if not _BEGINNING.fullmatch(digits):
        return None
    return uuid.UUID(digits.ljust(32, "0")), uuid.UUID(digits.ljust(32, "f"))
