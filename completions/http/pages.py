"""Lists of rows in pages, as OpenAI's client reads them: newest first by default.

The client sends the id of the last row that it has as `after`. So that it can delete rows on its
way, the id of a deleted row works as well: it carries the row's time.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from django.db.models import Model, Q, QuerySet
from rest_framework.request import Request

from completions.database.release import release
from completions.exceptions import invalid_parameter
from completions.http.query import refuse_unknown
from completions.models.timed_ids import read_time

PARAMETERS = ("limit", "after", "order")
_M = TypeVar("_M", bound=Model)
FindTime = Callable[[str], Awaitable[datetime | None]]
"""Returns when the row with an id was created; None if no row of the list can have had it."""


@dataclass(frozen=True, slots=True)
class Page:
    """The part of a list that a client asks for. `after` is the id of the last row it has."""

    limit: int
    after: str | None
    ascending: bool

    @classmethod
    def parse(
        cls, request: Request, default: int, maximum: int, filters: Collection[str] = ()
    ) -> "Page":
        """Return the part that the query parameters `limit`, `after` and `order` ask for. Others
        than these and `filters` are refused. Raises APIError."""
        refuse_unknown(request, [*PARAMETERS, *filters])
        query = request.query_params
        limit = query.get("limit", str(default))
        if not re.fullmatch(r"[0-9]{1,6}", limit) or not 1 <= int(limit) <= maximum:
            raise invalid_parameter("limit", limit, f"an integer from 1 to {maximum}")
        order = query.get("order", "desc")
        if order not in ("asc", "desc"):
            raise invalid_parameter("order", order, "asc or desc")
        return cls(int(limit), query.get("after") or None, order == "asc")

    async def read(
        self,
        rows: "QuerySet[_M, _M]",
        present: Callable[[_M], Mapping[str, object]],
        find_time: FindTime,
    ) -> dict[str, Any]:
        """Return the list object, whose rows are ordered by (created_at, id). `find_time` is asked
        about a row that is not there. Raises APIError."""
        sign = "" if self.ascending else "-"
        ordered = rows.order_by(f"{sign}created_at", f"{sign}pk")
        if self.after is not None:
            ordered = ordered.filter(await self._make_filter(self.after, rows, find_time))
        batch = [row async for row in ordered[: self.limit + 1]]
        await release()
        page_rows = batch[: self.limit]
        return {
            "object": "list",
            "data": [present(row) for row in page_rows],
            "first_id": page_rows[0].pk if page_rows else None,
            "last_id": page_rows[-1].pk if page_rows else None,
            "has_more": len(batch) > len(page_rows),
        }

    def cut(self, items: Sequence[Mapping[str, object]]) -> dict[str, object]:
        """Return the list object of items in their order, which have an `id`. Raises APIError."""
        ordered = items if self.ascending else items[::-1]
        begin = 0
        if self.after is not None:
            begin = 1 + next((i for i, each in enumerate(ordered) if each["id"] == self.after), -1)
            if not begin:
                raise invalid_parameter("after", self.after, "the id of an element of this list")
        data = ordered[begin : begin + self.limit]
        return {
            "object": "list",
            "data": list(data),
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": len(ordered) > begin + len(data),
        }

    async def _make_filter(self, after: str, rows: "QuerySet[_M, _M]", find_time: FindTime) -> Q:
        last: Any = await rows.filter(pk=after).afirst()
        created_at = await find_time(after) if last is None else last.created_at
        if created_at is None:
            raise invalid_parameter("after", after, "the id of an element of this list")
        side = "gt" if self.ascending else "lt"
        tied = Q(**{"created_at": created_at, f"pk__{side}": after})
        return Q(**{f"created_at__{side}": created_at}) | tied


def make_time_finder(prefix: str) -> FindTime:
    """Make a function that finds the time in ids with this prefix, which carry it."""

    async def find(row_id: str) -> datetime | None:
        return read_time(row_id) if row_id.startswith(prefix) else None

    return find
