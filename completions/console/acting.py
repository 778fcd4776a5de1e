"""API views that a user of the admin calls, acting as one of the API keys.

Nobody knows a key's secret, so the admin session takes its place. The key's models, scopes, limits,
budgets, priorities and usage apply as usual. Only its networks do not, because they restrict who
may use the secret. The requests come from a browser with cookies, so Django's CSRF check applies,
unlike in the API.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from typing import Any, cast

from asgiref.sync import sync_to_async
from django.contrib.auth.models import AnonymousUser, User
from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone

from completions.accounts import audit
from completions.accounts.audit import Actor
from completions.accounts.keys import Principal, make_principal
from completions.accounts.scope import Viewer, select_managed
from completions.database.release import run_and_release
from completions.endpoints import batches
from completions.endpoints.completions import CancelView, CompletionsView
from completions.endpoints.grammars import ValidateView
from completions.exceptions import APIError, invalid_parameter
from completions.http import access_log
from completions.http.authentication import permit
from completions.http.base import APIRequest, AsyncAPIView
from completions.http.process import WebProcess
from completions.models import ApiKey, AuditAction, Batch, File, Scope

HEADER = "X-Quire-Key"
"""The header with the id of the key to act as."""
ACTS, LOOKS = "completions.add_job", "completions.view_job"


class ActingView(AsyncAPIView):
    """The caller is a user of the admin with `permission`, who acts as the key in HEADER."""

    permission = ACTS
    user: User | AnonymousUser
    key: ApiKey

    async def identify_caller(self, request: HttpRequest) -> Principal:
        self.user = await request.auser()
        await self._check()
        self.key = await _find_key(request.headers.get(HEADER, ""), self.user)
        principal = require_usable(self.key)
        permit(replace(principal, networks=()), self.scope, "")
        access_log.note_caller(principal.key_id, principal.organization_id, principal.store_prompts)
        return principal

    async def _check(self) -> None:
        if not self.user.is_staff:
            raise APIError("permission_denied", "Your session has ended. Sign in again.")
        if not await self.user.ahas_perm(self.permission):
            message = (
                "You may look, but not run requests. Ask an administrator for the role Operator."
            )
            raise APIError("permission_denied", message)


class RunView(ActingView, CompletionsView):
    """POST a completion as the key. The audit trail records the user."""

    http_method_names = ["post"]

    async def post(self, request: APIRequest) -> HttpResponseBase:
        # Before the job is queued: a hang-up while this waits must not leave a job behind.
        used = {"request": [None, access_log.current_request_id()]}
        actor = Actor.from_user(self.user)
        await run_and_release(partial(audit.record, actor, AuditAction.USED, self.key, used))
        response = await super().post(request)
        if isinstance(response, StreamingHttpResponse):
            response.streaming_content = await _start(request.process, response.streaming_content)
        return response


class StopView(ActingView, CancelView):
    """Cancel a job of the key's organization."""


class ValidateConstraintView(ActingView, ValidateView):
    """Validate a constraint for the key's models. It changes nothing, so a Viewer may."""

    permission = LOOKS


async def _start(process: WebProcess, frames: Any) -> AsyncIterator[bytes]:
    """Start a stream, and close it when the task of the request ends. If the client hangs up while
    the response passes the middleware, nothing else would close it. Only a stream that has begun
    ends its job."""
    first = await anext(frames)
    answering = cast("asyncio.Task[object]", asyncio.current_task())
    answering.add_done_callback(lambda _: process.spawn(frames.aclose()))

    async def iter_all() -> AsyncIterator[bytes]:
        yield first
        async for frame in frames:
            yield frame

    return iter_all()


@sync_to_async
def _find_key(number: str, user: Viewer) -> ApiKey:
    if not (number.isascii() and number.isdecimal()) or len(number) > 18:
        raise invalid_parameter(HEADER, number, "the number of an API key")
    keys = select_managed(ApiKey.objects.with_organizations(), user)
    key = keys.filter(pk=int(number)).first()
    if key is None:
        raise APIError("invalid_api_key", "There is no such API key. Choose another.", HEADER)
    return key


def store_batch(
    user: Viewer, key: ApiKey, principal: Principal, batch: Batch, file: File, origin: str | None
) -> None:
    """Store a batch that a user of the admin sends as a key; `origin` is the id of the batch whose
    lines it repeats. Raises APIError, and then the file is deleted."""
    batches.set_origin(batch, file, principal)
    # Before the batch is stored: what a user sends as a key is always in the audit trail.
    changes = {"batch": [origin, batch.id]}
    audit.record(Actor.from_user(user), AuditAction.USED, key, changes)
    batches.store_again(batch, file, principal)


def require_usable(key: ApiKey, scope: Scope | None = None) -> Principal:
    """Return the principal of a key that may be used now, and has this scope. Raises APIError."""
    if key.organization.suspended_at is not None:
        raise APIError("api_key_revoked", f"{key.organization} is suspended.")
    state = key.state(timezone.now())
    if state != "active":
        raise APIError(f"api_key_{state}", f"The key {key} has {_ENDED[state]}. Choose another.")
    principal = make_principal(key)
    if scope is not None and scope not in principal.scopes:
        raise APIError("permission_denied", f"The key {key} lacks the scope {scope}.")
    return principal


_ENDED = {"revoked": "been revoked", "expired": "expired"}
