"""What a response goes on from: earlier responses, the items of a conversation, items by id.

A response whose job has just ended may be in Redis alone; then its items are read there.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import orjson
from django.db.models import Q
from django.utils import timezone

from completions.accounts.keys import Principal
from completions.database.release import run_and_release
from completions.delivery import answers
from completions.exceptions import APIError
from completions.http.process import WebProcess
from completions.http.socket_turns import SocketTurns
from completions.jobs import durable
from completions.jobs.events import EndEvent
from completions.models import Conversation, ConversationItem, Job, StoredResponse
from completions.models.conversations import Item, measure
from completions.requests.context import Earlier
from completions.requests.fields.conversions.items import list_references
from completions.responses.completion import CollectedResponse
from completions.responses.response_object import ItemsResponseContext

MAX_RESPONSES: Final = 1000
"""The longest chain of responses that one goes on from, and the most that one refers to."""
MAX_REFERENCES: Final = 10_000
"""The most stored items that a request refers to."""
MAX_BYTES: Final = 16 * 1024**2
"""The most bytes of items, as JSON, that a request goes on from: twice the largest body, and more
text than fits a context of a million tokens."""
_NUL: Final = "\0"
_ITEM_ID: Final = re.compile(r"[a-z]+_([0-9a-f]{32})_i?[0-9]+")


async def read_earlier(
    process: WebProcess, principal: Principal, body: object, turns: SocketTurns | None = None
) -> Earlier:
    """Read what a body that is not checked yet goes on from; `turns` are those of its connection.
    Raises APIError."""
    if type(body) is not dict:
        return Earlier()
    previous, conversation = body.get("previous_response_id"), body.get("conversation")
    if type(conversation) is dict:
        conversation = conversation.get("id")
    items: Sequence[Item] = ()
    last_item = 0
    local = turns.find(previous) if turns is not None and type(previous) is str else None
    if local is not None:
        check_size(len(local), "previous_response_id")
        items = await process.checks.run(principal.organization_id, orjson.loads, local)
    elif type(previous) is str:
        items = await _read_chain(process, principal, previous)
    elif type(conversation) is str:
        found = await open_conversation(process, principal, conversation, "conversation")
        check_size(found.bytes, "conversation")
        items, last_item = await read_items(process, found)
    references = set(list_references(body.get("input")))
    by_id = await _find_items(process, principal, references) if references else {}
    return Earlier(items, last_item, by_id, is_local=local is not None)


async def find_conversation(
    principal: Principal, conversation_id: str, param: str = "id"
) -> Conversation:
    """Find a conversation of the caller's organization. Raises APIError."""
    owned = Conversation.objects.filter(
        organization_id=principal.organization_id, expires_at__gt=timezone.now()
    )
    conversation = None
    if _NUL not in conversation_id:
        conversation = await run_and_release(owned.filter(pk=conversation_id).first)
    if conversation is None:
        raise APIError("conversation_not_found", param=param)
    return conversation


async def open_conversation(
    process: WebProcess, principal: Principal, conversation_id: str, param: str = "id"
) -> Conversation:
    """Find a conversation, once it has the items of responses that have ended. Raises APIError."""
    conversation = await find_conversation(principal, conversation_id, param)
    list_unjoined = partial(StoredResponse.list_unjoined, conversation_id=conversation_id)
    for row in await run_and_release(list_unjoined):
        await _join_ended(process, principal, row)
        conversation = await find_conversation(principal, conversation_id, param)
    return conversation


def check_size(size: int, param: str) -> None:
    """Raise APIError if a request cannot go on from items of so many bytes."""
    if size > MAX_BYTES:
        message = (
            f"More than {MAX_BYTES} bytes of items would precede what a response says. Begin "
            "another conversation, or send the items that matter."
        )
        raise APIError("invalid_value", message, param)


async def join_conversation(process: WebProcess, principal: Principal, response_id: str) -> None:
    """Give the conversation of a response, if it has one, the items of the response, if that has
    ended. Raises APIError."""
    for row in await run_and_release(partial(StoredResponse.list_unjoined, pk=response_id)):
        await _join_ended(process, principal, row)


async def _join_ended(process: WebProcess, principal: Principal, row: StoredResponse) -> None:
    response = await read_response(process, principal, row)
    if response["completed_at"] is not None:
        await run_and_release(partial(row.join, response))


async def read_items(process: WebProcess, conversation: Conversation) -> tuple[list[Item], int]:
    """Read the items of a conversation, and the primary key of the last one, or 0."""
    rows = await run_and_release(conversation.list_rows)
    items = await process.checks.run(conversation.organization_id, _read_rows, rows)
    return items, rows[-1].pk if rows else 0


def _read_rows(rows: Iterable[ConversationItem]) -> list[Item]:
    return [row.read() for row in rows]


async def find_stored(principal: Principal, response_id: str) -> StoredResponse:
    """Find what SQL has of a stored response, with its job. Raises APIError."""
    row = await _look_up(principal, response_id)
    if row is None:
        raise APIError(ItemsResponseContext.not_found, param="id")
    return row


async def _look_up(principal: Principal, response_id: str) -> StoredResponse | None:
    if _NUL in response_id:
        return None
    unexpired = Q(job__expires_at=None) | Q(job__expires_at__gt=timezone.now())
    owned = StoredResponse.objects.filter(unexpired, job__organization_id=principal.organization_id)
    return await run_and_release(owned.filter(pk=response_id).select_related("job").first)


async def read_response(
    process: WebProcess, principal: Principal, row: StoredResponse
) -> dict[str, object]:
    """Return the response object of a row that has its job. Raises APIError."""
    if row.job.events is not None:
        return await process.checks.run(principal.organization_id, _read_stored, row.job)
    job = await answers.find_job(process, ItemsResponseContext, row.pk, principal)
    context = ItemsResponseContext.read_job(job)
    collected: CollectedResponse = context.make_collected()
    if job.has_ended:
        collected = (await answers.follow(process, context, stored=job.events)).collected
    return collected.make_polled(job)


def _read_stored(row: Job) -> dict[str, object]:
    """Return the response object of a job that SQL has whole."""
    job = durable.make_record(row)
    collected = ItemsResponseContext.read_job(job).make_collected()
    for event in job.events or ():
        if not isinstance(event, EndEvent):
            collected.add(event)
    return collected.make_polled(job)


async def _read_chain(process: WebProcess, principal: Principal, last: str) -> list[Item]:
    """Return the items of a response and of all that it goes on from. Raises APIError."""
    param = "previous_response_id"
    turns: list[list[Item]] = []
    size = 0
    while last:
        if len(turns) == MAX_RESPONSES:
            message = f"More than {MAX_RESPONSES} responses precede it. Use a conversation."
            raise APIError("invalid_value", message, param)
        row = await _look_up(principal, last)
        if row is None:
            message = f"The response {last!r} was not stored, was deleted or has expired."
            raise APIError("previous_response_not_found", message, param)
        if row.conversation_id is not None:
            message = f"It belongs to a conversation. Send conversation: {row.conversation_id!r}."
            raise APIError("invalid_value", message, param)
        response = await read_response(process, principal, row)
        if response["completed_at"] is None:
            message = f"The response {last!r} has not ended. Retry once it has."
            raise APIError("invalid_value", message, param)
        items, bytes_of_turn = await _read_turn(process, principal, row, response)
        check_size(size := size + bytes_of_turn, param)
        turns.append(items)
        last = row.previous_id
    return [item for items in reversed(turns) for item in items]


async def _read_turn(
    process: WebProcess, principal: Principal, row: StoredResponse, response: Mapping[str, Any]
) -> tuple[list[Item], int]:
    """Return what a response was sent and what it said, and the bytes of that."""

    def read() -> tuple[list[Item], int]:
        items = [*row.list_input(), *response["output"]]
        return items, measure(items)

    return await process.checks.run(principal.organization_id, read)


async def _find_items(
    process: WebProcess, principal: Principal, ids: Collection[str]
) -> Mapping[str, Item]:
    """Return the stored items among these, in responses and in conversations."""
    if len(ids) > MAX_REFERENCES:
        message = f"refers to {len(ids)} items; at most {MAX_REFERENCES} can be. Send the items."
        raise APIError("array_above_max_length", f"input: {message}", "input")
    matches = filter(None, map(_ITEM_ID.fullmatch, ids))
    responses = {f"{ItemsResponseContext.id_prefix}{match[1]}" for match in matches}
    if len(responses) > MAX_RESPONSES:
        message = f"refers to items of more than {MAX_RESPONSES} responses. Send the items."
        raise APIError("invalid_value", f"input: {message}", "input")
    items, size = await run_and_release(partial(_list_items, principal, ids))
    for response_id in responses:
        if (row := await _look_up(principal, response_id)) is not None:
            response = await read_response(process, principal, row)
            turn, bytes_of_turn = await _read_turn(process, principal, row, response)
            check_size(size := size + bytes_of_turn, "input")
            items += turn
    return {item["id"]: item for item in items}


def _list_items(principal: Principal, ids: Collection[str]) -> tuple[list[Item], int]:
    """Return the items of conversations among these, and their bytes. Raises APIError."""
    storable = [each for each in ids if _NUL not in each]  # PostgreSQL cannot look for others
    owned = ConversationItem.objects.filter(
        conversation__organization_id=principal.organization_id, item_id__in=storable
    )
    items: list[Item] = []
    size = 0
    for row in owned.iterator():
        check_size(size := size + len(row.content), "input")
        items.append(row.read())
    return items, size
