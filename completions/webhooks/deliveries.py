"""Sends due deliveries, and decides when to retry a failed one."""

import logging
import random
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import NamedTuple

import orjson
from django.conf import settings
from django.db.models import QuerySet, Window
from django.db.models.functions import RowNumber
from django.utils import timezone

from completions.models import WebhookDelivery
from completions.webhooks import sending, signing

logger = logging.getLogger(__name__)

WAITS = tuple(
    timedelta(seconds=seconds) for seconds in (5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000)
)
"""Between two attempts: 5 s to 20 h, two days in all, as Standard Webhooks proposes."""
BATCH_SIZE = 20
_HISTORY = 20
"""Attempts that a delivery keeps: all of one round, and most of those after it was sent again."""


def send_due(now: datetime) -> int:
    """Send due deliveries, up to BATCH_SIZE in parallel. Returns how many arrived."""
    # Endpoints take turns: one with thousands due, or that hangs, must not hold up the others.
    turn = Window(RowNumber(), partition_by=["endpoint_id"], order_by=["due_at"])
    due = WebhookDelivery.objects.select_related("endpoint").filter(
        due_at__lte=now, endpoint__enabled=True
    )
    deliveries = list(due.annotate(turn=turn).order_by("turn", "due_at")[:BATCH_SIZE])
    if not deliveries:
        return 0
    with ThreadPoolExecutor(len(deliveries)) as threads:  # a server that hangs delays no other
        answers = list(threads.map(_send, deliveries))
    return sum(map(_record, deliveries, answers))


class _Answer(NamedTuple):
    at: datetime
    seconds: float
    status_code: int | None
    error: str = ""

    @property
    def arrived(self) -> bool:
        return self.status_code is not None and 200 <= self.status_code < 300


def _send(delivery: WebhookDelivery) -> _Answer:
    body = orjson.dumps(
        {
            "id": delivery.id,
            "object": "event",
            "type": delivery.type,
            "created_at": int(delivery.created_at.timestamp()),
            "data": delivery.data,
        }
    )
    endpoint, now, start = delivery.endpoint, timezone.now(), time.monotonic()
    signed = signing.make_headers(
        endpoint.list_secrets(now), delivery.id, int(now.timestamp()), body
    )
    headers = {"content-type": "application/json", "user-agent": "Quire", **signed}
    status_code, text = None, ""
    try:
        status_code = sending.post(
            endpoint.url, body, headers, settings.WEBHOOKS_TO_PRIVATE_NETWORKS
        )
    except sending.Failures as error:
        text = _make_printable(str(error).strip())[:200] or type(error).__name__
    return _Answer(now, time.monotonic() - start, status_code, text)


def _make_printable(text: str) -> str:
    """Make a server's text storable and printable: PostgreSQL takes no U+0000, a log no line
    breaks."""
    return "".join(each if each.isprintable() else "?" for each in text)


def _record(delivery: WebhookDelivery, answer: _Answer) -> bool:
    """Store how an attempt went. Returns whether the delivery arrived."""
    now = timezone.now()
    attempts = delivery.attempts + 1
    due_at = None if answer.arrived else _schedule_next(attempts, now)
    attempt = {
        "at": answer.at.isoformat(timespec="seconds"),
        "seconds": round(answer.seconds, 3),
        "status_code": answer.status_code,
        "error": answer.error,
    }
    # `save` would insert the row again if it was deleted with its endpoint meanwhile.
    WebhookDelivery.objects.filter(id=delivery.id).update(
        status_code=answer.status_code,
        error=answer.error,
        attempts=attempts,
        delivered_at=now if answer.arrived else None,
        due_at=due_at,
        history=[*delivery.history, attempt][-_HISTORY:],
    )
    if not answer.arrived:
        logger.warning(
            "webhook %s to %s: %s; %s",
            delivery.id,
            delivery.endpoint.url,
            answer.error or f"status {answer.status_code}",
            f"next attempt at {due_at:%Y-%m-%dT%H:%M:%SZ}" if due_at else "given up",
        )
    return answer.arrived


def replay(deliveries: "QuerySet[WebhookDelivery]") -> int:
    """Send these again at once, with their original ids, so that a receiver can recognise a
    repetition."""
    return deliveries.update(due_at=timezone.now(), delivered_at=None, attempts=0, error="")


def _schedule_next(attempts: int, now: datetime) -> datetime | None:
    """Return the time of the next attempt, up to a tenth later than the wait, so that deliveries
    that failed together spread out; None after the last one."""
    if attempts > len(WAITS):
        return None
    return now + WAITS[attempts - 1] * random.uniform(1, 1.1)  # noqa: S311 - no secret


def prune(before: datetime) -> int:
    """Delete finished deliveries that were created before this time."""
    return WebhookDelivery.objects.filter(due_at=None, created_at__lt=before).delete()[0]
