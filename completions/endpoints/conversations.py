"""/v1/conversations: items that responses begin with, and add theirs to."""

from functools import partial
from typing import Any

from django.db import transaction

from completions.database.release import run_and_release
from completions.delivery import rate_limits
from completions.delivery.history import (
    check_size,
    find_conversation,
    open_conversation,
    read_items,
)
from completions.delivery.storage import require_room
from completions.endpoints.completions import DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE
from completions.exceptions import APIError
from completions.http.base import APIRequest, AsyncAPIView
from completions.http.bodies import JSONResponse
from completions.http.pages import Page
from completions.models import Conversation, ConversationItem, Scope
from completions.models.conversations import Item, measure
from completions.models.timed_ids import new_id
from completions.requests.fields.conversions.items import ItemField, number_items
from completions.requests.fields.lists import ListField
from completions.requests.fields.metadata import MetadataField
from completions.requests.fields.objects import StrictObject

MAX_NEW_ITEMS = 20
"""Items that one request adds, as in OpenAI's API."""
MAX_ITEMS = 10_000
"""Items that a conversation has before it takes no more by request."""


class ConversationRequestObject(StrictObject[Any]):
    items = ListField("Up to 20 items to begin with.", child=ItemField(), max_length=MAX_NEW_ITEMS)
    metadata = MetadataField("Up to 16 pairs of texts.")


class ConversationUpdateObject(StrictObject[Any]):
    metadata = MetadataField(
        "Up to 16 pairs of texts, in place of the earlier ones.", required=True
    )


class ItemsRequestObject(StrictObject[Any]):
    items = ListField(
        "Up to 20 items to add.",
        child=ItemField(),
        max_length=MAX_NEW_ITEMS,
        not_empty=True,
        required=True,
    )


class ConversationsView(AsyncAPIView):
    """Create a conversation."""

    scope = Scope.INFERENCE

    async def post(self, request: APIRequest) -> JSONResponse:
        self.headers.update(await rate_limits.count_request(request.process, request.auth))
        values = ConversationRequestObject().validate(request.data)
        conversation = Conversation(
            organization_id=request.auth.organization_id, metadata=values.metadata or {}
        )
        items = _number(values.items or [])
        await run_and_release(partial(_insert, conversation, items))
        return JSONResponse(_show(conversation))


class ConversationView(AsyncAPIView):
    """Get a conversation, change its metadata, or delete it with its items."""

    scope = Scope.INFERENCE

    async def get(self, request: APIRequest, conversation_id: str) -> JSONResponse:
        return JSONResponse(_show(await find_conversation(request.auth, conversation_id)))

    async def post(self, request: APIRequest, conversation_id: str) -> JSONResponse:
        conversation = await find_conversation(request.auth, conversation_id)
        conversation.metadata = ConversationUpdateObject().validate(request.data).metadata
        await run_and_release(partial(conversation.save, update_fields=["metadata"]))
        return JSONResponse(_show(conversation))

    async def delete(self, request: APIRequest, conversation_id: str) -> JSONResponse:
        conversation = await find_conversation(request.auth, conversation_id)
        await run_and_release(conversation.delete)
        deleted = {"id": conversation_id, "object": "conversation.deleted", "deleted": True}
        return JSONResponse(deleted)


class ConversationItemsView(AsyncAPIView):
    """List the items of a conversation, or add some."""

    scope = Scope.INFERENCE

    async def get(self, request: APIRequest, conversation_id: str) -> JSONResponse:
        page = Page.parse(request, DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
        conversation = await open_conversation(request.process, request.auth, conversation_id)
        items, _ = await read_items(request.process, conversation)
        return JSONResponse(page.cut(items))

    async def post(self, request: APIRequest, conversation_id: str) -> JSONResponse:
        conversation = await open_conversation(request.process, request.auth, conversation_id)
        count = await run_and_release(conversation.items.count)
        self.headers.update(await rate_limits.count_request(request.process, request.auth))
        values = ItemsRequestObject().validate(request.data)
        if count + len(values.items) > MAX_ITEMS:
            message = f"items: the conversation has {count} items, and takes {MAX_ITEMS}."
            raise APIError("array_above_max_length", f"{message} Begin another one.", "items")
        added = _number(values.items)
        more = measure(added)
        check_size(conversation.bytes + more, "items")
        await run_and_release(partial(_append, conversation, added, more))
        return JSONResponse(Page(MAX_NEW_ITEMS, None, ascending=True).cut(added))


class ConversationItemView(AsyncAPIView):
    """Get or delete one item of a conversation."""

    scope = Scope.INFERENCE

    async def get(self, request: APIRequest, conversation_id: str, item_id: str) -> JSONResponse:
        _, row = await self._find(request, conversation_id, item_id)
        return JSONResponse(row.read())

    async def delete(self, request: APIRequest, conversation_id: str, item_id: str) -> JSONResponse:
        conversation, row = await self._find(request, conversation_id, item_id)
        await run_and_release(partial(conversation.remove, row))
        return JSONResponse(_show(conversation))

    async def _find(
        self, request: APIRequest, conversation_id: str, item_id: str
    ) -> tuple[Conversation, ConversationItem]:
        """Find an item and its conversation. Raises APIError."""
        conversation = await open_conversation(request.process, request.auth, conversation_id)
        row = await run_and_release(conversation.items.filter(item_id=item_id).first)
        if row is None:
            raise APIError("item_not_found", param="item_id")
        return conversation, row


def _number(items: list[Item]) -> list[Item]:
    return number_items(items, lambda prefix, _: new_id(prefix))


def _append(conversation: Conversation, items: list[Item], size: int) -> None:
    """Raises APIError."""
    require_room(conversation.organization_id, "items", size)
    conversation.append(items)


def _insert(conversation: Conversation, items: list[Item]) -> None:
    """Raises APIError."""
    require_room(conversation.organization_id, "items", measure(items))
    with transaction.atomic():
        conversation.save(force_insert=True)
        conversation.append(items)


def _show(conversation: Conversation) -> dict[str, object]:
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": int(conversation.created_at.timestamp()),
        "metadata": conversation.metadata,
    }
