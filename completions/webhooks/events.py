"""Finds the events that an endpoint has not received, and makes a delivery of each."""

import uuid
from collections.abc import Iterator
from datetime import datetime, timedelta

from django.db.models import Exists, OuterRef

from completions.models import (
    Batch,
    BatchStatus,
    BudgetWarning,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookEvent,
)
from completions.models.webhooks import TEST_EVENT

LOOKED_BACK = timedelta(days=3)
"""An event older than this, because the service was down, is not sent."""
_OF_BATCHES = {
    BatchStatus.COMPLETED: WebhookEvent.BATCH_COMPLETED,
    BatchStatus.FAILED: WebhookEvent.BATCH_FAILED,
    BatchStatus.EXPIRED: WebhookEvent.BATCH_EXPIRED,
    BatchStatus.CANCELLED: WebhookEvent.BATCH_CANCELLED,
}


def collect(now: datetime) -> int:
    """Store a delivery for each new event. Returns how many.

    Events are derived from the rows that they report, so that none is lost between the end of a
    batch and its delivery. An endpoint gets the events that happen after it is registered.
    """
    made = 0
    for endpoint in WebhookEndpoint.objects.filter(enabled=True, organization__suspended_at=None):
        since = max(endpoint.created_at, now - LOOKED_BACK)
        deliveries = [*_collect_batches(endpoint, since), *_collect_warnings(endpoint, since)]
        made += len(WebhookDelivery.objects.bulk_create(deliveries, ignore_conflicts=True))
    return made


def send_test(endpoint: WebhookEndpoint) -> WebhookDelivery:
    """Store a delivery that tells the receiver nothing but that the endpoint works."""
    return WebhookDelivery.objects.create(
        endpoint=endpoint,
        type=TEST_EVENT,
        subject=str(uuid.uuid4()),
        data={"message": "An operator sent this event to try the endpoint."},
    )


def _collect_batches(endpoint: WebhookEndpoint, since: datetime) -> Iterator[WebhookDelivery]:
    delivered = WebhookDelivery.objects.filter(endpoint=endpoint, subject=OuterRef("id"))
    ended = Batch.objects.filter(
        ~Exists(delivered),
        organization_id=endpoint.organization_id,
        ended_at__gte=since,
        status__in=[status for status, kind in _OF_BATCHES.items() if kind in endpoint.events],
    )
    for batch in ended:
        kind = _OF_BATCHES[BatchStatus(batch.status)]
        yield WebhookDelivery(endpoint=endpoint, type=kind, subject=batch.id, data={"id": batch.id})


def _collect_warnings(endpoint: WebhookEndpoint, since: datetime) -> Iterator[WebhookDelivery]:
    kind = WebhookEvent.BUDGET_WARNING
    if kind not in endpoint.events:
        return
    delivered = WebhookDelivery.objects.filter(endpoint=endpoint, type=kind).values_list("subject")
    warnings = BudgetWarning.objects.select_related("organization", "api_key").filter(
        organization_id=endpoint.organization_id, created_at__gte=since
    )
    subjects = {subject for (subject,) in delivered}
    for warning in warnings:
        if str(warning.pk) not in subjects:
            data = {
                "message": str(warning),
                "budget": warning.budget,
                "percent": warning.percent,
                "period": warning.period.isoformat(),
                "api_key_name": warning.api_key.name if warning.api_key else None,
            }
            yield WebhookDelivery(endpoint=endpoint, type=kind, subject=str(warning.pk), data=data)
