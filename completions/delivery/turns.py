"""Finds what the session of a request holds, and completes the body with it."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from django.conf import settings
from django.utils import timezone
from msgspec import structs

from completions.accounts.keys import Principal
from completions.catalog.model_files import load_catalog
from completions.database.release import run_and_release
from completions.delivery import answers
from completions.delivery.storage import require_room
from completions.exceptions import APIError, FieldError
from completions.http.process import WebProcess
from completions.models import Job, OnDrift, Session
from completions.models.sessions import new_session_id
from completions.requests.chat import ChatRequestObject
from completions.requests.context import NOTHING_EARLIER, Earlier
from completions.requests.fields.session import NEW, ROOT
from completions.requests.past import Past
from completions.requests.preparation import Route
from completions.responses.whole_response import read_context
from completions.sessions import reading, recording
from completions.sessions.reading import PathRow, Place


class _FailedError(Exception):
    """A turn has no answers, though SQL may not know yet that it failed."""

    def __init__(self, turn_id: str) -> None:
        super().__init__(turn_id)
        self.turn_id = turn_id


class _Found(NamedTuple):
    """What SQL holds of a session up to a choice."""

    session: Session
    place: Place
    rows: Sequence[PathRow]
    newest: str | None
    """The session's newest turn, if the request does not say what it comes after."""


async def complete_body(
    process: WebProcess, route: Route, body: Any, principal: Principal
) -> tuple[object, Earlier]:
    """Find what the session of a body holds, and complete the body with its messages and with the
    fields that a turn repeats by itself. A field of the wrong type is left to validation. Raises
    APIError."""
    session_id, after = body.get("session"), body.get("after")
    is_one = "session" in route.request_type.fields and type(session_id) is str
    if not is_one or not isinstance(after, str | None):
        return body, NOTHING_EARLIER
    try:
        past = await _find_past(process, session_id, after, principal)
        is_chat = issubclass(route.request_type, ChatRequestObject)
        return _complete(body, past, is_chat=is_chat), Earlier(past=past)
    except FieldError as error:
        raise error.api_error() from error


async def _find_past(
    process: WebProcess, session_id: str, after: str | None, principal: Principal
) -> Past:
    if session_id == NEW:
        if after not in (None, ROOT):
            raise FieldError("a new session has no choices; leave this out.", "after")
        await run_and_release(partial(require_room, principal.organization_id, "session"))
        return Past(
            session_id=new_session_id(),
            model="",
            seconds=settings.SESSION_TTL,
            on_drift=OnDrift.KEEP,
        )
    failed: set[str] = set()
    while True:
        look_up = partial(_look_up, session_id, after, principal.organization_id, failed)
        found = await run_and_release(look_up)
        try:
            ended = [await _read_answers(process, row) for row in found.rows]
        except _FailedError as error:
            if error.turn_id in failed:  # the choice is that of a later turn
                message = f"this choice follows {error.turn_id}, which failed; send another."
                raise FieldError(message, "after") from error
            failed.add(error.turn_id)
            continue
        return await run_and_release(
            partial(reading.make_past, found.session, ended, found.place, found.newest)
        )


def _look_up(
    session_id: str, after: str | None, organization_id: int, failed: Collection[str]
) -> _Found:
    owned = reading.list_sessions(organization_id, timezone.now())
    session = None if "\x00" in session_id else owned.filter(id=session_id).first()
    if session is None:
        raise APIError("session_not_found", param="session")
    if load_catalog().get(session.model) is None:
        message = f"The session's model, {session.model}, is not served any more."
        raise APIError("model_not_found", message, "session")
    require_room(organization_id, "session")
    newest = Job.find_newest_turn(session.id) if after is None else None
    place = reading.find_place(session, after, failed)
    return _Found(session, place, reading.read_path(session, place), newest)


async def _read_answers(process: WebProcess, row: PathRow) -> PathRow:
    """Return a turn with its answers, from Redis if SQL does not know that it has ended. Raises
    APIError, and _FailedError if it has none."""
    if row.has_ended:
        if not row.turn.choices:
            raise _FailedError(row.id)
        return row
    job = await process.find_shard_by_job(row.id).submission.fetch(row.id)
    if job is not None and job.state == "failed":
        raise _FailedError(row.id)
    if job is None or job.state not in ("completed", "cancelled"):
        raise APIError("turn_in_progress", param="after")
    context = read_context(job.id, job.context)
    outcome = await answers.follow(process, context)
    if outcome.end is None:
        raise APIError("turn_in_progress", param="after")
    choices = recording.make_choices(outcome.collected)
    return row._replace(turn=structs.replace(row.turn, choices=choices))


def _complete(body: Mapping[str, object], past: Past, *, is_chat: bool) -> dict[str, object]:
    """Return the body with the session's model and, in a chat, its messages and the fields that
    the prompt depends on. Raises FieldError."""
    whole = dict(body)
    if past.model and whole.get("model") is None:
        whole["model"] = past.model
    messages = whole.get("messages")
    if not is_chat or type(messages) is not list or not messages or type(messages[0]) is int:
        return whole
    if (said := past.messages) is None:
        message = "this session was given token ids; send prompt or input_ids."
        raise FieldError(message, "messages")
    inherited = {name: each for name, each in past.fields.items() if whole.get(name) is None}
    return {**whole, **inherited, "messages": [*said, *messages]}
