"""Stored responses, and conversations: the items that later responses begin with."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import orjson
from django.conf import settings
from django.db import models, transaction
from django.db.models import F
from django.db.models.functions import Greatest
from django.utils import timezone

from completions.contract.json_lines import compress_lines, decompress_lines
from completions.models.jobs import Job
from completions.models.organizations import Organization
from completions.models.timed_ids import new_id

Item = Mapping[str, Any]
"""An item of the Responses API, as clients see it."""


def new_conversation_id() -> str:
    return new_id("conv_")


def find_expiry() -> object:
    """Return when a conversation expires that is used now."""
    return timezone.now() + timedelta(seconds=settings.RESPONSE_TTL)


def measure(items: Iterable[Item]) -> int:
    """Return the bytes of items as JSON."""
    return sum(len(orjson.dumps(item)) for item in items)


class Conversation(models.Model):
    """Items of one organization, in their order. Items that are added and responses that begin
    put off its expiry."""

    id = models.CharField(primary_key=True, max_length=64, default=new_conversation_id)
    organization = models.ForeignKey(Organization, models.CASCADE, related_name="conversations")
    metadata = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(default=find_expiry, db_index=True)
    bytes = models.PositiveBigIntegerField(default=0, help_text="Bytes of its items.")

    def __str__(self) -> str:
        return self.id

    def append(self, items: Sequence[Item]) -> None:
        """Add items at the end, and put off the expiry."""
        contents = [orjson.dumps(item) for item in items]
        with transaction.atomic():
            ConversationItem.objects.bulk_create(
                ConversationItem(conversation=self, item_id=item["id"], content=content.decode())
                for item, content in zip(items, contents, strict=True)
            )
            self._add_bytes(sum(map(len, contents)))
            self.put_off_expiry(self.pk)

    def remove(self, item: "ConversationItem") -> None:
        with transaction.atomic():
            deleted, _ = item.delete()
            if deleted:
                self._add_bytes(-len(item.content.encode()))

    def _add_bytes(self, number: int) -> None:
        Conversation.objects.filter(pk=self.pk).update(bytes=Greatest(F("bytes") + number, 0))

    @staticmethod
    def put_off_expiry(conversation_id: str) -> bool:
        """Let a conversation live longer, and lock its row until the end of the transaction.
        Returns whether it is there."""
        kept = Conversation.objects.filter(pk=conversation_id)
        return bool(kept.update(expires_at=find_expiry()))

    def list_rows(self) -> "list[ConversationItem]":
        """Return the items in their order."""
        return list(self.items.order_by("pk"))


class ConversationItem(models.Model):
    """An item of a conversation."""

    conversation = models.ForeignKey(Conversation, models.CASCADE, related_name="items")
    item_id = models.CharField(max_length=80, db_index=True)
    content = models.TextField(help_text="The item as JSON, in which escapes write U+0000.")

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["conversation", "item_id"], name="one_item_per_id"),
        ]

    def __str__(self) -> str:
        return self.item_id

    def read(self) -> Item:
        item: Item = orjson.loads(self.content)
        return item


class StoredResponse(models.Model):
    """What a stored response has beside its job: where it goes on from, and what it was sent.

    It is deleted with its job."""

    job = models.OneToOneField(Job, models.CASCADE, primary_key=True, related_name="response")
    previous_id = models.CharField(max_length=64, blank=True)
    conversation = models.ForeignKey(
        Conversation, models.SET_NULL, null=True, related_name="responses"
    )
    is_joined = models.BooleanField(
        default=False, help_text="Whether its conversation has its items, if it is to have them."
    )
    input = models.BinaryField(help_text="The items of the request as JSON lines, compressed.")

    def __str__(self) -> str:
        return str(self.pk)

    @classmethod
    def list_unjoined(cls, **where: Any) -> "list[StoredResponse]":
        """Return the responses whose items their conversation is still to have, with their jobs."""
        unjoined = cls.objects.filter(**where, is_joined=False)
        return list(unjoined.select_related("job", "conversation"))

    @staticmethod
    def pack(items: Iterable[Item]) -> bytes:
        return compress_lines(map(orjson.dumps, items))

    def list_input(self) -> list[Item]:
        return [orjson.loads(line) for line in decompress_lines(self.input) if line]

    def join(self, response: Mapping[str, Any]) -> None:
        """Add the items of the ended response, which is given as clients see it, to its
        conversation, unless another process has. One that failed or was cancelled adds none."""
        with transaction.atomic():
            unjoined = StoredResponse.objects.filter(pk=self.pk, is_joined=False)
            if not unjoined.update(is_joined=True) or self.conversation is None:
                return
            if response["status"] in ("completed", "incomplete"):
                self.conversation.append([*self.list_input(), *response["output"]])


def make_item_id(prefix: str, index: int, response_id: str, *, is_input: bool = False) -> str:
    """Return the id of an item: it names its response, so that a reference finds it."""
    place = f"i{index}" if is_input else str(index)
    return f"{prefix}{response_id.rpartition('_')[2]}_{place}"
