"""/v1/sessions: create, list, get, export and delete conversations whose token ids are kept."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Self

from django.conf import settings
from django.http import StreamingHttpResponse
from django.utils import timezone

from completions.accounts.keys import Principal
from completions.contract.strict_json import encode_line
from completions.database.release import release, run_and_release
from completions.delivery import rate_limits
from completions.delivery.preferences import refuse_idempotency_key
from completions.delivery.storage import require_room
from completions.exceptions import APIError, FieldError
from completions.http.base import APIRequest, AsyncAPIView
from completions.http.bodies import JSONResponse
from completions.http.pages import Page, make_time_finder
from completions.http.process import WebProcess
from completions.http.query import refuse_unknown
from completions.models import Job, JobStatus, OnDrift, Scope, Session
from completions.models.sessions import SESSION_ID
from completions.requests.context import Context
from completions.requests.fields.base import ChoiceField, IntegerField
from completions.requests.fields.objects import StrictObject
from completions.requests.model import ModelRequestObject
from completions.requests.past import make_choice_id
from completions.responses.completion import STATUS
from completions.sessions import reading, trajectory

DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE = 20, 100
KEEP_SECONDS = range(60, 2_592_000 + 1)
SETTLED_WITHIN, LOOK_EVERY = 15.0, 0.1
"""Seconds within which an ended turn has reached SQL, and between two looks."""


class LastActiveObject(StrictObject["LastActiveObject | None"]):
    anchor = ChoiceField(
        "The time from which the seconds count: when the newest turn was made.",
        choices=["last_active_at"],
        required=True,
    )
    seconds = IntegerField(
        "How long the session is kept.",
        min_value=KEEP_SECONDS[0],
        max_value=KEEP_SECONDS[-1],
        required=True,
    )


class SessionRequestObject(ModelRequestObject[Session]):
    """The body of POST /v1/sessions."""

    on_drift = ChoiceField(
        "What its turns do where the chat template would write earlier messages in another way; "
        "each may send another `on_drift`.",
        choices=OnDrift.values,
        default=OnDrift.KEEP,
    )
    expires_after = LastActiveObject("When the session is deleted; default 7 days.")

    def make(self, values: Self, context: Context) -> Session:
        after = values.expires_after
        seconds = settings.SESSION_TTL if after is None else after.seconds
        principal = context.principal
        return Session(
            organization_id=principal.organization_id,
            api_key_id=principal.key_id,
            model=context.model.entry.id,
            on_drift=values.on_drift,
            seconds=seconds,
            expires_at=timezone.now() + timedelta(seconds=seconds),
        )


def make_session_object(session: Session) -> dict[str, object]:
    return {
        "id": session.id,
        "object": "session",
        "model": session.model,
        "on_drift": session.on_drift,
        "created_at": int(session.created_at.timestamp()),
        "expires_at": int(session.expires_at.timestamp()),
        "bytes": session.bytes,
    }


class SessionsView(AsyncAPIView):
    """Create a session, or list the organization's."""

    scope = Scope.INFERENCE

    async def post(self, request: APIRequest) -> JSONResponse:
        refuse_idempotency_key(request)
        self.headers.update(await rate_limits.count_request(request.process, request.auth))
        session = SessionRequestObject().validate_for(request.data, request.auth)
        await run_and_release(partial(require_room, request.auth.organization_id, "session"))
        await session.asave(force_insert=True)
        return JSONResponse(make_session_object(session))

    async def get(self, request: APIRequest) -> JSONResponse:
        rows = reading.list_sessions(request.auth.organization_id, timezone.now())
        page = Page.parse(request, DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
        finder = make_time_finder(SESSION_ID)
        return JSONResponse(await page.read(rows, make_session_object, finder))


class SessionView(AsyncAPIView):
    """Get a session with its turns, or delete it."""

    scope = Scope.INFERENCE

    async def get(self, request: APIRequest, session_id: str) -> JSONResponse:
        session = await find_session(session_id, request.auth)
        turns = await run_and_release(partial(_list_turns, session))
        unended = [turn["id"] for turn in turns if turn["status"] == "queued"]
        shard = request.process.find_shard_by_organization(session.organization_id)
        states = await shard.submission.states(unended) if unended else []
        by_id = dict(zip(unended, states, strict=True))
        for turn in turns:
            if (state := by_id.get(turn["id"])) is not None:
                turn["status"] = STATUS[state]
        return JSONResponse({**make_session_object(session), "turns": turns})

    async def delete(self, request: APIRequest, session_id: str) -> JSONResponse:
        session = await find_session(session_id, request.auth)
        running = Job.objects.filter(session=session, status=JobStatus.QUEUED)
        ids = [job_id async for job_id in running.values_list("id", flat=True)]
        await session.adelete()
        await release()
        for job_id in ids:
            await request.process.find_shard_by_job(job_id).submission.cancel(job_id)
        return JSONResponse({"id": session_id, "object": "session", "deleted": True})


class TrajectoryView(AsyncAPIView):
    """Stream the turns of a session as JSON Lines: all of them, or those up to `choice`."""

    scope = Scope.INFERENCE

    async def get(self, request: APIRequest, session_id: str) -> StreamingHttpResponse:
        refuse_unknown(request, ["choice"])
        session = await find_session(session_id, request.auth)
        choice = request.query_params.get("choice")
        try:
            chosen = await run_and_release(partial(_choose_turns, session, choice))
        except FieldError as error:
            error.path = "choice"
            raise error.api_error() from error
        await _wait_for_ends(request.process, list(chosen))
        return StreamingHttpResponse(_stream(chosen), content_type="application/jsonl")


def _list_turns(session: Session) -> list[dict[str, Any]]:
    rows = Job.objects.filter(session=session).order_by("created_at", "id")
    names = ("id", "status", "after_turn", "after_index", "created_at", "context__n")
    return [
        {
            "id": turn_id,
            "after": make_choice_id(after, index) if after else None,
            "status": STATUS[status],
            "created_at": int(created_at.timestamp()),
            "choices": [make_choice_id(turn_id, each) for each in range(n)],
        }
        for turn_id, status, after, index, created_at, n in rows.values_list(*names)
    ]


def _choose_turns(session: Session, choice: str | None) -> Mapping[str, int | None]:
    """Return the ids of the turns, each with the choice that the path goes on from. Raises
    FieldError."""
    if choice is None:
        rows = Job.objects.filter(session=session).order_by("created_at", "id")
        return dict.fromkeys(rows.values_list("id", flat=True))
    path = reading.read_path(session, reading.find_place(session, choice))
    return {row.id: row.choice for row in path}


async def _wait_for_ends(process: WebProcess, turn_ids: Sequence[str]) -> None:
    """Wait until SQL has the answers of those turns that Redis knows to have ended. Raises
    APIError."""
    clock = asyncio.get_running_loop().time
    until = clock() + SETTLED_WITHIN
    waiting = Job.objects.filter(id__in=turn_ids, status=JobStatus.QUEUED)
    while True:
        ids = await run_and_release(lambda: list(waiting.values_list("id", flat=True)))
        states = await process.find_shard_by_job(ids[0]).submission.states(ids) if ids else []
        if not any(STATUS[state or "queued"] not in ("queued", "in_progress") for state in states):
            return
        if clock() > until:
            raise APIError("turn_in_progress")
        await asyncio.sleep(LOOK_EVERY)


async def _stream(chosen: Mapping[str, int | None]) -> AsyncIterator[bytes]:
    def make(turn_id: str, choice: int | None) -> bytes:
        job = Job.objects.filter(id=turn_id).first()
        return b"" if job is None else encode_line(trajectory.make_line(job, choice)) + b"\n"

    for turn_id, choice in chosen.items():
        yield await run_and_release(partial(make, turn_id, choice))


async def find_session(session_id: str, principal: Principal) -> Session:
    """Find the session, if it is this organization's and has not expired. Raises APIError."""
    owned = reading.list_sessions(principal.organization_id, timezone.now())
    session = await owned.filter(id=session_id).afirst()
    await release()
    if session is None:
        raise APIError("session_not_found", param="id")
    return session
