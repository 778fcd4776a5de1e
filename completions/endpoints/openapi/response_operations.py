"""The operations of the Responses API, with conversations, and of the Messages API."""

from collections.abc import Mapping

from completions.endpoints.conversations import (
    ConversationRequestObject,
    ConversationUpdateObject,
    ItemsRequestObject,
)
from completions.endpoints.openapi import message_shapes, response_shapes, shapes
from completions.endpoints.openapi.examples import make_const
from completions.endpoints.openapi.operation import (
    EVENTS,
    INCLUDE_META,
    JSON,
    ONCE,
    PAGE,
    POLL,
    SSE_IDS,
    Operation,
    make_query,
)
from completions.endpoints.openapi.shapes import MODEL_ID
from completions.requests.compaction import CompactRequestObject
from completions.requests.message import CountTokensRequestObject, MessagesRequestObject
from completions.requests.response import InputTokensRequestObject, ResponsesRequestObject

RESPONSE_OPERATIONS: Mapping[str, Mapping[str, Operation]] = {
    "responses": {
        "POST /v1/responses": Operation(
            "Create a response",
            response_shapes.RESPONSE,
            "Returns the response, streams it, or returns a background one that is queued.",
            ResponsesRequestObject,
            {"model": MODEL_ID, "input": "Name a colour.", "max_output_tokens": 16},
            (ONCE, INCLUDE_META, SSE_IDS),
            errors=(409, 422, 429, 504),
            media_types=(JSON, EVENTS),
        ),
        "POST /v1/responses/input_tokens": Operation(
            "Count the tokens of a response's prompt",
            {"object": make_const("response.input_tokens"), "input_tokens": 10},
            request=InputTokensRequestObject,
            example={"model": MODEL_ID, "input": "Name a colour."},
            errors=(429,),
        ),
        "POST /v1/responses/compact": Operation(
            "Compact a conversation",
            response_shapes.COMPACTION,
            "The model sums up the items. Its summary is an encrypted item, which a later response "
            "takes in their place.",
            CompactRequestObject,
            {"model": MODEL_ID, "input": "Name a colour."},
            (ONCE, INCLUDE_META),
            errors=(409, 422, 429, 504),
        ),
        "GET /v1/responses/{job_id}": Operation(
            "Get a stored response, or stream it again",
            response_shapes.RESPONSE,
            parameters=(
                *POLL,
                make_query("include_obfuscation", "boolean", "Pad the deltas of the stream."),
            ),
            statuses=(200, 304),
            media_types=(JSON, EVENTS),
        ),
        "DELETE /v1/responses/{job_id}": Operation(
            "Delete a response that has ended", shapes.DELETED, errors=(409,)
        ),
        "POST /v1/responses/{job_id}/cancel": Operation(
            "Cancel a response", response_shapes.RESPONSE, "One that has ended does not change."
        ),
        "GET /v1/responses/{job_id}/input_items": Operation(
            "List the items that a response was sent", response_shapes.ITEMS, parameters=PAGE
        ),
    },
    "messages": {
        "POST /v1/messages": Operation(
            "Create a message, as Anthropic's API does",
            message_shapes.MESSAGE,
            "Returns the message, or streams it.",
            MessagesRequestObject,
            {
                "model": MODEL_ID,
                "max_tokens": 16,
                "messages": [{"role": "user", "content": "Name a colour."}],
            },
            (ONCE, INCLUDE_META, SSE_IDS),
            errors=(409, 422, 429, 504),
            error=message_shapes.MESSAGE_ERROR,
            media_types=(JSON, EVENTS),
        ),
        "POST /v1/messages/count_tokens": Operation(
            "Count the tokens of a message's prompt",
            {"input_tokens": 10},
            request=CountTokensRequestObject,
            example={
                "model": MODEL_ID,
                "messages": [{"role": "user", "content": "Name a colour."}],
            },
            errors=(429,),
            error=message_shapes.MESSAGE_ERROR,
        ),
    },
    "conversations": {
        "POST /v1/conversations": Operation(
            "Create a conversation",
            response_shapes.CONVERSATION,
            request=ConversationRequestObject,
            example={"items": [{"role": "user", "content": "Name a colour."}]},
            errors=(429,),
        ),
        "GET /v1/conversations/{conversation_id}": Operation(
            "Get a conversation", response_shapes.CONVERSATION
        ),
        "POST /v1/conversations/{conversation_id}": Operation(
            "Change the metadata of a conversation",
            response_shapes.CONVERSATION,
            request=ConversationUpdateObject,
            example={"metadata": {"topic": "colours"}},
        ),
        "DELETE /v1/conversations/{conversation_id}": Operation(
            "Delete a conversation with its items", shapes.DELETED
        ),
        "GET /v1/conversations/{conversation_id}/items": Operation(
            "List the items of a conversation", response_shapes.ITEMS, parameters=PAGE
        ),
        "POST /v1/conversations/{conversation_id}/items": Operation(
            "Add items to a conversation",
            response_shapes.ITEMS,
            request=ItemsRequestObject,
            example={"items": [{"role": "user", "content": "Name a colour."}]},
            errors=(429,),
        ),
        "GET /v1/conversations/{conversation_id}/items/{item_id}": Operation(
            "Get an item of a conversation", response_shapes.ITEM
        ),
        "DELETE /v1/conversations/{conversation_id}/items/{item_id}": Operation(
            "Delete an item of a conversation", response_shapes.CONVERSATION
        ),
    },
}
"""Like OPERATIONS."""
