"""Compacted conversations: the answer of a model that sums one up, as an item that goes on for it.

What the item holds is encrypted, so that clients send it back as it is, and no other organization
can use it.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import orjson
from cryptography.fernet import Fernet, InvalidToken
from django.conf import settings
from django.utils.crypto import salted_hmac

from completions.contract.usage import Usage
from completions.exceptions import APIError
from completions.models.conversations import Item, make_item_id
from completions.responses.response_object import CollectedItems, ItemsResponseContext

COMPACTION: Final = "compaction"
"""The type of the item."""
COMPACTION_PREFIX: Final = "cmp_"
"""What the ids of such items begin with."""
_SALT: Final = "completions.responses.compaction"
_ASKED: Final = "Sum up our conversation so far."
"""What stands before the summary: templates need turns that alternate."""


class UnsealError(Exception):
    """The content of an item is not what this server sealed for the organization."""


def seal(items: Sequence[Item], organization_id: int) -> str:
    """Return items encrypted and authenticated by Fernet (https://github.com/fernet/spec), with a
    key for this organization and this installation."""
    # Nothing is compressed: what many items open to is bounded by the body that they come in.
    return _make_fernet(organization_id).encrypt(orjson.dumps(items)).decode()


def unseal(content: str, organization_id: int) -> list[Item]:
    """Return what :func:`seal` sealed. Raises UnsealError."""
    try:
        opened = _make_fernet(organization_id).decrypt(content.encode())
    except (InvalidToken, UnicodeEncodeError) as error:
        raise UnsealError from error
    items: list[Item] = orjson.loads(opened)
    return items


def _make_fernet(organization_id: int) -> Fernet:
    digest = salted_hmac(_SALT, str(organization_id), settings.SECRET_KEY, algorithm="sha256")
    return Fernet(base64.urlsafe_b64encode(digest.digest()))


class CompactionContext(ItemsResponseContext, frozen=True, omit_defaults=True):
    """The response context of a compaction. `shown` has the items that stay as they are (`kept`)
    and the organization that may use the summary (`owner`)."""

    object: ClassVar[str] = "response.compaction"
    path: ClassVar[str] = "/v1/responses/compact"

    @property
    def location(self) -> str:
        return ""  # it is not stored

    def make_collected(self) -> "CollectedCompaction":
        return CollectedCompaction(self)

    def make_compaction(self, summary: str, usage: Mapping[str, Any]) -> dict[str, Any]:
        """Return the object with a model's summary."""
        kept: Sequence[Item] = self.shown["kept"]
        output: list[Item] = [
            {"id": make_item_id("msg_", index, self.id), **item} for index, item in enumerate(kept)
        ]
        asked = {"role": "user", "content": [{"type": "input_text", "text": _ASKED}]}
        said = {"role": "assistant", "content": [{"type": "output_text", "text": summary}]}
        sealed = seal([{"type": "message", **each} for each in (asked, said)], self.shown["owner"])
        item_id = make_item_id(COMPACTION_PREFIX, len(kept), self.id)
        output.append({"id": item_id, "type": COMPACTION, "encrypted_content": sealed})
        return {
            "id": self.id,
            "object": self.object,
            "created_at": self.created,
            "output": output,
            "usage": usage,
        }


class CollectedCompaction(CollectedItems):
    """Collector of a job's events into a compaction."""

    _context: CompactionContext

    def make_response(self, usage: Usage | None) -> dict[str, object]:
        """Raises APIError if the model wrote nothing."""
        response: dict[str, Any] = super().make_response(usage)
        parts = (item["content"] for item in response["output"] if item["type"] == "message")
        summary = "".join(part["text"] for content in parts for part in content).strip()
        if not summary:
            raise APIError("empty_summary")
        return self._context.make_compaction(summary, response["usage"])
