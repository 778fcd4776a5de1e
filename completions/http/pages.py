"""Lists of rows in pages, as OpenAI's client reads them: newest first by default."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from django.db.models import Model, Q, QuerySet
from rest_framework.request import Request

from completions.exceptions import invalid_parameter
from completions.models.release import release

_M = TypeVar("_M", bound=Model)


@dataclass(frozen=True, slots=True)
class Page:
    """The part of a list that a client asks for. `after` is the id of the last row it has."""

    limit: int
    after: str | None
    ascending: bool

    @classmethod
    def of(cls, request: Request, default: int, most: int) -> "Page":
        """The part that the query parameters `limit`, `after` and `order` ask for. Raises
        APIError."""
        given = request.query_params
        limit = given.get("limit", str(default))
        if not re.fullmatch(r"[0-9]{1,6}", limit) or not 1 <= int(limit) <= most:
            raise invalid_parameter("limit", limit, f"an integer from 1 to {most}")
        order = given.get("order", "desc")
        if order not in ("asc", "desc"):
            raise invalid_parameter("order", order, "asc or desc")
        return cls(int(limit), given.get("after") or None, order == "asc")

    async def read(
        self, rows: "QuerySet[_M, _M]", present: Callable[[_M], Mapping[str, Any]]
    ) -> dict[str, Any]:
        """The list object, whose rows are ordered by (created_at, id). Raises APIError."""
        sign = "" if self.ascending else "-"
        wanted = rows.order_by(f"{sign}created_at", f"{sign}pk")
        if self.after is not None:
            wanted = wanted.filter(await self._beyond(rows))
        found = [row async for row in wanted[: self.limit + 1]]
        await release()
        shown = found[: self.limit]
        return {
            "object": "list",
            "data": [present(row) for row in shown],
            "first_id": shown[0].pk if shown else None,
            "last_id": shown[-1].pk if shown else None,
            "has_more": len(found) > len(shown),
        }

    async def _beyond(self, rows: "QuerySet[_M, _M]") -> Q:
        last: Any = await rows.filter(pk=self.after).afirst()
        if last is None:
            raise invalid_parameter("after", self.after or "", "the id of an element of this list")
        side = "gt" if self.ascending else "lt"
        tied = Q(**{"created_at": last.created_at, f"pk__{side}": last.pk})
        return Q(**{f"created_at__{side}": last.created_at}) | tied
