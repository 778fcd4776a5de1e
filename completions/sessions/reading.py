"""Reads what a session holds from its beginning to a choice."""

import re
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import NamedTuple

from django.db import connection
from django.db.models import QuerySet

from completions.exceptions import FieldError
from completions.models import Job, JobStatus, Session
from completions.requests.fields.session import ROOT
from completions.requests.past import Answered, Past, Turn
from completions.responses import token_texts

_CHOICE = re.compile(r"([a-z]+-[0-9a-f]{32}):([0-9]{1,4})")
_PATH = """
WITH RECURSIVE path(id, after_turn, depth) AS (
    SELECT id, after_turn, 0 FROM completions_job WHERE id = %s AND session_id = %s
    UNION ALL
    SELECT job.id, job.after_turn, path.depth + 1
    FROM completions_job job JOIN path ON job.id = path.after_turn
)
SELECT job.id, job.status, job.turn, job.after_index
FROM completions_job job JOIN path ON job.id = path.id
ORDER BY path.depth DESC
"""
"""The turns up to one, the session's first one first."""


class Place(NamedTuple):
    """A choice of a session, or its beginning."""

    turn_id: str = ""
    choice: int = 0


class PathRow(NamedTuple):
    """A turn on the way to a choice."""

    id: str
    status: str
    turn: Turn
    choice: int
    """The index of the choice that the way goes on from."""

    @property
    def has_ended(self) -> bool:
        """Whether SQL has its answers."""
        return self.status != JobStatus.QUEUED


def list_sessions(organization_id: int, now: datetime) -> "QuerySet[Session, Session]":
    """Select the sessions of an organization that have not expired."""
    return Session.objects.filter(organization_id=organization_id, expires_at__gt=now)


def find_place(session: Session, after: str | None, failed: Collection[str] = ()) -> Place:
    """Find the choice that `after` names; by default, the answer of the newest turn that has not
    failed. `failed` are turns that SQL does not know to have failed. Raises FieldError."""
    if after == ROOT:
        return Place()
    turns = Job.objects.filter(session=session)
    if after is None:
        standing = turns.exclude(status=JobStatus.FAILED).exclude(id__in=failed)
        newest = standing.order_by("-created_at", "-id")
        row = newest.only("id", "context").first()
        if row is None:
            return Place()
        if (n := row.context.get("n", 1)) > 1:
            message = f"is required: the newest turn, {row.id}, has {n} choices."
            raise FieldError(message, "after", code="missing_required_parameter")
        return Place(row.id)
    match = _CHOICE.fullmatch(after)
    row = turns.filter(id=match[1]).only("status", "context").first() if match else None
    if match is None or row is None or int(match[2]) >= row.context.get("n", 1):
        message = f"{after[:80]!r} is not a choice of this session; send `id` of one, or {ROOT}."
        raise FieldError(message, "after")
    if row.status == JobStatus.FAILED or row.id in failed:
        raise FieldError(f"{after!r} failed, and has no answer; send another choice.", "after")
    return Place(match[1], int(match[2]))


def read_path(session: Session, place: Place) -> list[PathRow]:
    """Read the turns up to a choice, the session's first one first."""
    if not place.turn_id:
        return []
    with connection.cursor() as cursor:
        cursor.execute(_PATH, [place.turn_id, session.id])
        rows = [
            (PathRow(id, status, Turn.decompress(content), 0), after_index)
            for id, status, content, after_index in cursor
        ]
    indexes = [*(after_index for _, after_index in rows[1:]), place.choice]
    return [row._replace(choice=index) for (row, _), index in zip(rows, indexes, strict=True)]


def make_past(session: Session, rows: Sequence[PathRow], place: Place, newest: str | None) -> Past:
    """Make what the session holds up to a choice. `newest` is the newest turn, if the choice
    depends on it."""
    return Past(
        session_id=session.id,
        model=session.model,
        seconds=session.seconds,
        on_drift=session.on_drift,
        after_turn=place.turn_id,
        after_index=place.choice,
        newest_turn=newest,
        turns=[_make_answered(session.model, row.turn, row.choice) for row in rows],
    )


def _make_answered(model: str, turn: Turn, index: int) -> Answered:
    texts = token_texts.load_token_texts(model)
    answer = b"".join(map(texts.get_bytes, turn.choices[index].token_ids))
    return Answered(turn, index, answer.decode(errors="replace"))
