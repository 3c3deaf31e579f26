"""Pages of a long list without counting all of it."""

from __future__ import annotations

from typing import Any, cast

from django.core.paginator import Paginator
from django.utils.functional import cached_property

MOST_COUNTED = 10_000


class BoundedPaginator(Paginator):
    """Counts MOST_COUNTED rows at most, by an index. What lies beyond is found by filters, not by turning pages."""

    @cached_property
    def count(self) -> int:
        rows = cast(Any, self.object_list)
        return rows.order_by().values("pk")[:MOST_COUNTED].count()

    @property
    def is_cut(self) -> bool:
        return self.count >= MOST_COUNTED
