"""/v1/responses: create, retrieve, stream again, cancel, delete, list the items of the input."""

from http import HTTPStatus
from types import MappingProxyType

from django.http.response import HttpResponseBase
from msgspec import structs

from completions.delivery import answers, rate_limits
from completions.delivery.history import find_stored, join_conversation, read_earlier
from completions.delivery.preferences import Preferences, read_flag, wants_meta
from completions.endpoints.completions import (
    DEFAULT_PAGE_SIZE,
    MAX_PAGE_SIZE,
    CancelView,
    CompletionView,
    GenerateView,
)
from completions.exceptions import APIError
from completions.http.base import APIRequest, AsyncAPIView
from completions.http.bodies import JSONResponse
from completions.http.pages import Page
from completions.http.socket_turns import read_event
from completions.jobs.record import JobRecord
from completions.models import Scope
from completions.requests.context import Earlier
from completions.requests.preparation import PreparedRequest, find_route
from completions.requests.response import InputTokensRequestObject
from completions.responses.compaction import CompactionContext
from completions.responses.completion import ResponseContext
from completions.responses.response_object import ItemsResponseContext


class ResponsesView(GenerateView):
    """Create a response."""

    context_type = ItemsResponseContext

    async def post(self, request: APIRequest) -> HttpResponseBase:
        if request.turns is not None:
            read_event(request.data)
        response = await super().post(request)
        if response.status_code == HTTPStatus.ACCEPTED:
            response.status_code = HTTPStatus.OK  # as OpenAI answers; the body says `queued`
        return response

    def read_preferences(self, request: APIRequest) -> Preferences:
        """Return the preferences. `background` alone says who waits, and the response repeats
        it."""
        return Preferences(meta=wants_meta(request))

    async def find_earlier(self, request: APIRequest) -> tuple[object, Earlier]:
        body, turns = request.data, request.turns
        earlier = await read_earlier(request.process, request.auth, body, turns)
        if turns is not None and not earlier.is_local:  # else the request has these among its own
            turns.earlier = earlier.items
        return body, earlier

    async def prepare(self, request: APIRequest) -> PreparedRequest:
        prepared = await super().prepare(request)
        response = prepared.request.response
        if request.turns is not None and response is not None and response.is_local:
            request.turns.keep_asked(response.items)
        return prepared


class ResponseView(CompletionView):
    """Retrieve a stored response, stream it again, or delete it once it has ended."""

    context_type = ItemsResponseContext
    parameters = (*CompletionView.parameters, "include_obfuscation")
    unsupported = MappingProxyType(
        {"include": "Send it when the response is created: the response keeps what it asks for."}
    )

    async def find(self, request: APIRequest, job_id: str) -> JobRecord:
        return await _find_stored_job(request, job_id)

    def read_context(self, request: APIRequest, job: JobRecord) -> ResponseContext:
        context = super().read_context(request, job)
        pads = read_flag(request, "include_obfuscation")
        return structs.replace(context, obfuscation=pads)

    async def delete(self, request: APIRequest, job_id: str) -> JSONResponse:
        await self.find(request, job_id)
        await join_conversation(request.process, request.auth, job_id)
        return await super().delete(request, job_id)


class CancelResponseView(CancelView):
    """Cancel a stored response. One that has ended does not change."""

    context_type = ItemsResponseContext

    async def post(self, request: APIRequest, job_id: str) -> JSONResponse:
        await _find_stored_job(request, job_id)
        return await super().post(request, job_id)


class InputItemsView(AsyncAPIView):
    """List the items that a response was sent, without those of earlier responses."""

    scope = Scope.INFERENCE

    async def get(self, request: APIRequest, job_id: str) -> JSONResponse:
        page = Page.parse(request, DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
        stored = await find_stored(request.auth, job_id)
        read = request.process.checks.run(request.auth.organization_id, stored.list_input)
        return JSONResponse(page.cut(await read))


class InputTokensView(AsyncAPIView):
    """Count the tokens of a response's prompt."""

    scope = Scope.INFERENCE

    async def post(self, request: APIRequest) -> JSONResponse:
        process = request.process
        self.headers.update(await rate_limits.count_request(process, request.auth))
        with find_route(ItemsResponseContext.path).rename_errors():
            earlier = await read_earlier(process, request.auth, request.data)
            count, ignored = await InputTokensRequestObject.validate_request(
                process.checks, request.data, request.auth, earlier
            )
        if ignored:
            self.headers["x-ignored-params"] = ", ".join(ignored)
        return JSONResponse({"object": "response.input_tokens", "input_tokens": count})


class CompactView(ResponsesView):
    """Sum up a conversation, as an item that stands for it."""

    context_type = CompactionContext


async def _find_stored_job(request: APIRequest, job_id: str) -> JobRecord:
    """Find the job of a response, unless its request says not to store it. Raises APIError."""
    job = await answers.find_job(request.process, ItemsResponseContext, job_id, request.auth)
    if not ItemsResponseContext.read_job(job).shown["store"]:
        raise APIError(ItemsResponseContext.not_found, param="id")
    return job
