"""/v1/completions, /v1/chat/completions and other engines' own routes: create, list, poll, stream
again, cancel, delete."""

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from django.conf import settings
from django.db.models import Q
from django.http.response import HttpResponseBase
from django.utils import timezone
from redis.exceptions import RedisError

from completions.database.release import run_and_release
from completions.delivery import answers, forecasts, idempotency, rate_limits, turns
from completions.delivery.enqueueing import enqueue, new_job
from completions.delivery.preferences import (
    Preferences,
    read_cursor,
    read_flag,
    read_idempotency_key,
    read_seconds,
    wants_meta,
)
from completions.delivery.streams import StreamQuery, stream_frames
from completions.exceptions import APIError
from completions.grammars import Caller
from completions.http.base import APIRequest, AsyncAPIView
from completions.http.bodies import JSONResponse
from completions.http.pages import Page, make_time_finder
from completions.http.process import WebProcess
from completions.http.query import refuse_unknown
from completions.jobs import durable
from completions.jobs.new_job import NewJob
from completions.jobs.record import JobRecord, Kind
from completions.jobs.sharding.shards import name_shard
from completions.models import Job, Scope
from completions.models.timed_ids import new_id
from completions.requests.context import NOTHING_EARLIER, Earlier
from completions.requests.fields.returns import ReturnSettings
from completions.requests.fields.window import DeadlineSettings
from completions.requests.preparation import PreparedRequest, find_route, prepare_valid
from completions.responses import sse
from completions.responses.completion import STATUS, ResponseContext

MAX_POLL_WAIT = 30.0
DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE = 20, 100


class GenerateView(AsyncAPIView):
    """Create a completion. Each route sets the `context_type` that shapes the answer."""

    scope = Scope.INFERENCE
    context_type: type[ResponseContext] = ResponseContext

    async def post(self, request: APIRequest) -> HttpResponseBase:
        process = request.process
        preferences = self.read_preferences(request)
        query = StreamQuery(ids=read_flag(request, "sse_ids"), meta=preferences.meta)
        principal, path = request.auth, self.context_type.path
        key = read_idempotency_key(request, path)
        if key is not None and (first := await idempotency.find_first_job(key, principal.key_id)):
            return await self._answer_again(first, request, preferences, query)
        # A refused body would cost nothing, however long it takes to check.
        is_long = find_route(path).request_type.is_long(request.data)
        if is_long:
            self.headers.update(await rate_limits.count_request(process, principal))
        prepared = await self.prepare(request)
        request.start_check()
        context, returns = prepared.context, prepared.request.returns
        self._note_ignored(context)
        kind = _choose_kind(returns, preferences)
        job = new_job(prepared, kind, principal, key, is_counted=is_long)
        admission = await _measure(job, prepared.request.deadline)
        make_promise = None if admission is None else admission.make_promise
        if remaining := await enqueue(process, job, make_promise):
            self.headers.update(rate_limits.make_headers(remaining))
        if returns.stream:
            writer = request.body_writer
            events = stream_frames(process, context, job.seconds, query, job=job, writer=writer)
            stream = sse.make_response(events)
            return (
                stream
                if job.ends_with_client
                else answers.add_location(stream, context, preferences)
            )
        if kind == "background":
            return await answers.accept(process, context, job, principal, preferences, admission)
        return await answers.answer(process, context, job, preferences.meta)

    async def _answer_again(
        self, job_id: str, request: APIRequest, preferences: Preferences, query: StreamQuery
    ) -> HttpResponseBase:
        """Return the response to the first request with this idempotency key."""
        process = request.process
        try:
            job = await answers.find_job(process, self.context_type, job_id, request.auth)
        except APIError as error:
            if error.code != self.context_type.not_found:
                raise
            raise idempotency.make_conflict() from error  # it was refused a moment ago
        context = self.context_type.read_job(job)
        body: Any = request.data
        streams, in_background = body.get("stream"), job.kind == "background"
        can_wait = streams or in_background or job.has_ended
        if not can_wait or not await answers.is_admitted(process, job):
            raise idempotency.make_conflict()
        self._note_ignored(context)
        self.headers[idempotency.REPLAYED] = "true"
        if streams:
            writer = request.body_writer
            events = stream_frames(
                process, context, job.seconds_left, query, stored=job.events, writer=writer
            )
            stream = sse.make_response(events)
            return answers.add_location(stream, context, preferences)
        if in_background:
            return await answers.accept_or_answer(process, context, request.auth, preferences)
        return await answers.answer_again(process, context, job, preferences.meta)

    def read_preferences(self, request: APIRequest) -> Preferences:
        return Preferences.from_request(request)

    async def prepare(self, request: APIRequest) -> PreparedRequest:
        """Make a job of the body. Raises APIError."""
        route, checks = find_route(self.context_type.path), request.process.checks
        body, earlier = await self.find_earlier(request)
        with route.rename_errors():
            valid = await route.request_type.validate_request(checks, body, request.auth, earlier)
            owner = request.auth.organization_id
            job_id = name_shard(new_id(self.context_type.id_prefix), owner, settings.SHARDS)
            caller = Caller(owner)
            return await prepare_valid(checks, route, valid, job_id, caller)

    async def find_earlier(self, request: APIRequest) -> tuple[object, Earlier]:
        """Return the body, complete with what its session holds, and that. Raises APIError."""
        body: Any = request.data
        if body.get("session") is None:
            return body, NOTHING_EARLIER
        route = find_route(self.context_type.path)
        return await turns.complete_body(request.process, route, body, request.auth)

    def _note_ignored(self, context: ResponseContext) -> None:
        if context.ignored_params:
            self.headers["x-ignored-params"] = ", ".join(context.ignored_params)


class CompletionsView(GenerateView):
    """Create a completion, or list the background ones."""

    async def get(self, request: APIRequest) -> JSONResponse:
        owned = Job.objects.filter(organization_id=request.auth.organization_id)
        unexpired = Q(expires_at=None) | Q(expires_at__gt=timezone.now())
        rows = owned.filter(unexpired, id__startswith=self.context_type.id_prefix)
        page = Page.parse(request, DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE, ["model"])
        if (model := request.query_params.get("model")) is not None:
            rows = rows.filter(model=model)
        listing = await page.read(
            rows, self._make_summary, make_time_finder(self.context_type.id_prefix)
        )
        await _add_states(request.process, listing["data"])
        return JSONResponse(listing)

    def _make_summary(self, row: Job) -> dict[str, object]:
        """Return a job without its choices."""
        job = durable.make_record(row)
        context = self.context_type.read(job.context)
        body = context.make_collected().make_polled(job)
        del body["choices"]
        return body


async def _add_states(process: WebProcess, completions: list[dict[str, Any]]) -> None:
    """Replace `queued` with the state in Redis, because SQL is updated later."""
    unended = [body for body in completions if body["status"] == "queued"]
    ids = [body["id"] for body in unended]
    states = await process.find_shard_by_job(ids[0]).submission.states(ids) if ids else []
    for body, state in zip(unended, states, strict=True):
        body["status"] = STATUS[state or "queued"]


class CompletionView(AsyncAPIView):
    """Poll a completion, stream it again, or delete it once it has ended."""

    scope = Scope.INFERENCE
    context_type: type[ResponseContext] = ResponseContext
    parameters: Sequence[str] = ("stream", "starting_after", "sse_ids", "wait")
    unsupported: Mapping[str, str] = MappingProxyType({})
    """Query parameters that only OpenAI's API has, each with what to do."""

    async def find(self, request: APIRequest, job_id: str) -> JobRecord:
        """Find the job of this path. Raises APIError."""
        return await answers.find_job(request.process, self.context_type, job_id, request.auth)

    async def get(self, request: APIRequest, job_id: str) -> HttpResponseBase:
        refuse_unknown(request, self.parameters, unsupported=self.unsupported)
        process = request.process
        job = await self.find(request, job_id)
        context = self.read_context(request, job)
        if read_flag(request, "stream"):
            after = read_cursor(request)
            ids = read_flag(request, "sse_ids") or "Last-Event-ID" in request.headers
            query = StreamQuery(after, ids, wants_meta(request))
            events = stream_frames(
                process, context, job.seconds_left, query, job.events, writer=request.body_writer
            )
            return sse.make_response(events)
        wait = read_seconds(request, "wait", MAX_POLL_WAIT)
        etag = request.headers.get("If-None-Match")
        return await answers.poll(process, context, request.auth, wait, etag, wants_meta(request))

    def read_context(self, request: APIRequest, job: JobRecord) -> ResponseContext:
        return self.context_type.read_job(job)

    async def delete(self, request: APIRequest, job_id: str) -> JSONResponse:
        job = await self.find(request, job_id)
        if not job.has_ended:
            raise APIError("completion_in_progress", param="id")
        if self.read_context(request, job).session is not None:
            raise APIError("completion_in_session", param="id")
        await durable.discard(job_id)
        await request.process.find_shard_by_job(job_id).submission.remove(job_id)
        return JSONResponse({"id": job_id, "object": self.context_type.object, "deleted": True})


class CancelView(AsyncAPIView):
    """Cancel a completion. One that has ended does not change."""

    scope = Scope.INFERENCE
    context_type: type[ResponseContext] = ResponseContext

    async def post(self, request: APIRequest, job_id: str) -> JSONResponse:
        job = await answers.find_job(request.process, self.context_type, job_id, request.auth)
        context = self.context_type.read_job(job)
        if job.has_ended:
            return await answers.poll(request.process, context, request.auth, wait=0.0)
        try:
            await request.process.find_shard_by_job(job_id).submission.cancel(job_id)
        except (RedisError, OSError) as error:
            raise APIError("queue_unavailable") from error
        # The worker confirms within one step, so the response usually shows the final state.
        return await answers.poll(request.process, context, request.auth, wait=5.0)


async def _measure(job: NewJob, deadline: DeadlineSettings | None) -> forecasts.Admission | None:
    """Return what the forecast of the job's end is made of, if its request asks for one. Raises
    APIError."""
    if deadline is None:
        return None
    if (name := deadline.in_background) and job.kind != "background":
        message = f"{name}: needs background: true; add it or leave this out."
        raise APIError("invalid_value", message, name)
    if job.kind != "background" or not (name or deadline.is_flexible):
        return None
    measure = forecasts.Admission.measure
    return await run_and_release(partial(measure, job, deadline.refuses_late, timezone.now()))


def _choose_kind(returns: ReturnSettings, preferences: Preferences) -> Kind:
    if returns.background or preferences.respond_async:
        return "background"
    return "stream" if returns.stream else "sync"
