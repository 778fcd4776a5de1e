"""From a body to a job: the same function for live requests and for lines of batches."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http import HTTPStatus
from typing import Any, NamedTuple

from msgspec import structs

from completions.accounts.keys import Principal
from completions.chat.tools import Tool
from completions.contract.job_request import JobRequest
from completions.exceptions import APIError
from completions.grammars import Caller
from completions.jobs.new_job import SessionTurn
from completions.models.timed_ids import new_id
from completions.requests.chat import ChatRequestObject
from completions.requests.compaction import CompactRequestObject
from completions.requests.completion import CompletionRequestObject
from completions.requests.fair_semaphore import Checks
from completions.requests.generation import ChatSettings, GenerationRequest
from completions.requests.message import MessagesRequestObject
from completions.requests.model import ModelRequestObject
from completions.requests.native import SGLangGenerateObject, VLLMGenerateObject
from completions.requests.past import Addition, make_choice_id
from completions.requests.response import ResponsesRequestObject
from completions.requests.validation import require_end, validate_grammar
from completions.responses.chat import ChatResponseContext, OfferedTool
from completions.responses.compaction import CompactionContext
from completions.responses.completion import ResponseContext
from completions.responses.echo import echo_prompts
from completions.responses.message_object import MessageContext
from completions.responses.native import SGLangContext, VLLMContext
from completions.responses.response_context import SessionReference
from completions.responses.response_object import ItemsResponseContext

_OF_NAMES = ("unknown_parameter", "unsupported_parameter")
"""Codes of errors about a name that the body itself has."""


class Route(NamedTuple):
    request_type: type[ModelRequestObject[GenerationRequest]]
    context_type: type[ResponseContext]
    rename_path: Callable[[str], str] = str
    """Returns the path in the body of what the request, perhaps a chat's, has at a path."""

    @contextmanager
    def rename_errors(self) -> Iterator[None]:
        """Let the errors of the body name its own fields."""
        try:
            yield
        except APIError as error:
            if error.param is not None and error.code not in _OF_NAMES:
                name = self.rename_path(error.param)
                error.message = error.message.replace(f"{error.param}:", f"{name}:", 1)
                error.param = name
            raise


ROUTES: Mapping[str, Route] = {
    ResponseContext.path: Route(CompletionRequestObject, ResponseContext),
    ChatResponseContext.path: Route(ChatRequestObject, ChatResponseContext),
    ItemsResponseContext.path: Route(
        ResponsesRequestObject, ItemsResponseContext, ResponsesRequestObject.rename_path
    ),
    MessageContext.path: Route(
        MessagesRequestObject, MessageContext, MessagesRequestObject.rename_path
    ),
}
"""The routes of jobs and of lines, by path."""
_LIVE_ROUTES: Mapping[str, Route] = {
    CompactionContext.path: Route(
        CompactRequestObject, CompactionContext, CompactRequestObject.rename_path
    ),
    SGLangContext.path: Route(SGLangGenerateObject, SGLangContext),
    VLLMContext.path: Route(VLLMGenerateObject, VLLMContext),
}
"""The routes of jobs that no batch has lines for."""
_MANY_IDS = 1000
"""Ids that the event loop turns into text in about a millisecond."""
OFFLINE_TRIES, OFFLINE_SECONDS = 10, 1.0
"""How often an offline body is tried, and the pause between two tries."""


def find_route(path: str) -> Route:
    """Find the route of a path that makes a job."""
    return ROUTES.get(path) or _LIVE_ROUTES[path]


class PreparedRequest(NamedTuple):
    """A job that can be queued."""

    request: GenerationRequest
    context: ResponseContext

    @property
    def job_request(self) -> JobRequest:
        """What the worker computes."""
        return self.request.job

    @property
    def session_turn(self) -> SessionTurn | None:
        """What it adds to a session."""
        addition = self.request.addition
        return None if addition is None else addition.make_row(self.request.model.entry.id)


async def prepare(
    checks: Checks,
    path: str,
    body: object,
    principal: Principal,
    job_id: str | None = None,
    caller: Caller | None = None,
) -> PreparedRequest:
    """Validate a body and validate its constraint for `caller`, by default the caller's
    organization. `job_id` is random by default. Raises APIError."""
    route = find_route(path)
    job_id = job_id or new_id(route.context_type.id_prefix)
    caller = caller or Caller(principal.organization_id)
    with route.rename_errors():
        request = await route.request_type.validate_request(checks, body, principal)
        return await prepare_valid(checks, route, request, job_id, caller)


async def prepare_valid(
    checks: Checks, route: Route, request: GenerationRequest, job_id: str, caller: Caller
) -> PreparedRequest:
    """Validate the constraint of a validated request for `caller`. Raises APIError."""
    compile_ms = None
    if (constraint := request.constraint) is not None:
        began = time.monotonic()
        validated = await validate_grammar(
            checks.validator,
            constraint,
            request.model.files,
            request.fallback,
            caller,
        )
        grammar, ignored = validated.grammar, (*request.ignored, *validated.ignored)
        max_tokens = request.job.sampling.max_tokens
        if request.close is None:
            generates = max_tokens > 0
            request = replace(request, close=generates and request.model.entry.close)
        if request.close:
            is_known = await require_end(
                checks.validator,
                constraint,
                grammar,
                request.model.files,
                max_tokens,
                caller,
            )
            # Without a known end, it closes a text only if the rest becomes short enough.
            ignored = ignored if is_known else (*ignored, "close")
        reports = request.returns.return_meta_info
        request = replace(request, ignored=ignored).change_job(
            grammar=grammar, close=bool(request.close), report_constraint=reports
        )
        compile_ms = round((time.monotonic() - began) * 1000, 3)
    elif request.close:
        request = replace(request, close=False, ignored=(*request.ignored, "close"))
    if request.echo and sum(map(len, request.job.prompts)) > _MANY_IDS:
        context = await checks.run(caller.owner, _make_context, route, request, job_id, compile_ms)
    else:
        context = _make_context(route, request, job_id, compile_ms)
    return PreparedRequest(request, context)


async def prepare_offline(
    checks: Checks,
    path: str,
    body: object,
    principal: Principal,
    job_id: str | None = None,
    caller: Caller | None = None,
) -> PreparedRequest:
    """Prepare a body for which no client waits. Tries again while the machine is validating too
    many grammars, because that error is not about the body. Raises APIError."""
    for _ in range(OFFLINE_TRIES - 1):
        try:
            return await prepare(checks, path, body, principal, job_id, caller)
        except APIError as error:
            if error.status_code != HTTPStatus.SERVICE_UNAVAILABLE:
                raise
            await asyncio.sleep(OFFLINE_SECONDS)
    return await prepare(checks, path, body, principal, job_id, caller)


def _make_context(
    route: Route, request: GenerationRequest, job_id: str, compile_ms: float | None
) -> ResponseContext:
    model, job, returns, logprobs = request.model, request.job, request.returns, request.logprobs
    prompts = job.prompts
    counts = map(len, job.continuations)
    places = [place for place, count in enumerate(counts) for _ in range(count)]
    lengths = list(map(len, prompts))
    options, rid = returns.stream_options, request.rid
    scored = (each is not None and each.logprob_start_len >= 0 for each in job.logprobs or ())
    shows_prompts = returns.return_token_ids or any(scored)
    context_type = route.context_type if request.chat is None else ResponseContext
    context = context_type(
        id=job_id,
        model=model.name,
        base_model=None if model.name == model.entry.id else model.entry.id,
        created=int(time.time()),
        n=job.sampling.n,
        prompt_lengths=[lengths[place] for place in places] if places else lengths,
        prompts=prompts if shows_prompts else None,
        prompt_places=places if shows_prompts else (),
        is_batch=request.is_batch,
        scored=bool(job.continuations),
        return_token_ids=returns.return_token_ids,
        sglang_logprobs=logprobs.sglang,
        text_in_logprobs=logprobs.return_text,
        prompt_logprobs=logprobs.prompt_top,
        sampling_support=logprobs.support_ids is not None,
        meta_info=(
            returns.return_meta_info
            or job.return_routed_experts
            or rid is not None
            or bool(job.sampling.stop_regex)
            or logprobs.sglang is not None
            or bool(request.close)
        ),
        hidden_states=job.return_hidden_states,
        routed_experts=job.return_routed_experts,
        cached_tokens_details=returns.return_cached_tokens_details,
        rid=rid,
        truncated_tokens=request.truncated_tokens,
        include_usage=options.include_usage,
        continuous_usage_stats=options.continuous_usage_stats,
        obfuscation=options.include_obfuscation,
        prices=model.entry.prices or None,
        # A turn that the deadline cuts fails: its session does not go on from it.
        default_length=request.default_length and request.addition is None,
        constrained=request.constraint is not None,
        closes=bool(request.close),
        grammar_compile_ms=compile_ms,
        weight_version=model.files.weight_version,
        ignored_params=tuple(map(route.rename_path, request.ignored)),
        session=None if request.addition is None else _make_session(request.addition),
    )
    if request.chat is not None:
        chat = _make_chat_context(context, request.chat, logprobs.top)
        if route.context_type is ChatResponseContext:
            return chat
        shown: dict[str, Any] = {}
        if request.response is not None:
            shown = {"shown": request.response.shown}
        return route.context_type(**structs.asdict(chat), **shown)
    return _add_completion(context, request)


def _make_session(addition: Addition) -> SessionReference:
    past, turn = addition.past, addition.turn
    after = make_choice_id(past.after_turn, past.after_index) if past.after_turn else None
    action = None if turn.drift is None else "rebase" if turn.is_rebased else "keep"
    drift = None if action is None else {"from_message": turn.drift, "action": action}
    return SessionReference(past.session_id, after, drift)


def _add_completion(context: ResponseContext, request: GenerationRequest) -> ResponseContext:
    if not request.echo:
        return structs.replace(context, logprobs=request.logprobs.top)
    skip = request.job.sampling.skip_special_tokens
    echoes = echo_prompts(request.model.files, request.job.prompts, skip)
    return structs.replace(
        context,
        logprobs=request.logprobs.top,
        echo=echoes.texts,
        open_ends=echoes.open_ends or (),
        skip_special_tokens=skip,
    )


def _make_chat_context(
    context: ResponseContext, chat: ChatSettings, top_logprobs: int | None
) -> ChatResponseContext:
    calls, reasoning = chat.calls, chat.reasoning
    tags = reasoning.tags if reasoning is not None and chat.separate_reasoning else None
    return ChatResponseContext(
        **structs.asdict(context),
        tool_format=calls.format.name if calls else None,
        calls_first=chat.calls_first,
        tools=[_offer(tool) for tool in calls.tools] if calls else (),
        think_tags=tags,
        is_reasoning_open=reasoning.is_open if reasoning else False,
        reasoning_lead=reasoning.lead if reasoning else "",
        hidden=chat.hidden,
        unseen=chat.unseen,
        around=chat.around,
        alternatives=top_logprobs,
        stream_reasoning=chat.stream_reasoning,
    )


def _offer(tool: Tool) -> OfferedTool:
    return OfferedTool(tool.name, tool.read_schema, tool.is_custom)
