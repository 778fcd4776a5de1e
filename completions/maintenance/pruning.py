"""Deletes expired data, and merges old hourly usage into days."""

from collections import Counter
from datetime import datetime, timedelta

from django.conf import settings
from django.contrib.sessions.models import Session as Login
from django.db.models import Model, QuerySet

from completions.accounts import adapters
from completions.batches import files, uploads, writing
from completions.jobs import durable
from completions.models import (
    BudgetWarning,
    Conversation,
    LoadSample,
    Refusal,
    Session,
    StoredPrompt,
    UsageRecord,
    WrongKey,
)
from completions.usage import ledger
from completions.webhooks import deliveries

_BATCH_SIZE = 2000
DELIVERIES_KEPT = timedelta(days=30)
SAMPLES_KEPT = timedelta(days=35)
"""Samples of the load, warnings of budgets, and the addresses that used wrong keys."""


def prune(now: datetime) -> Counter[str]:
    """Delete expired rows and files. Returns the numbers deleted, by kind."""
    records = now - timedelta(days=settings.USAGE_RECORD_DAYS)
    prompts = now - timedelta(days=settings.STORED_PROMPT_DAYS)
    writing.delete_left_lines()
    return Counter(
        {
            "files": files.prune(now),
            "uploads": uploads.prune(now),
            "left bodies of uploads": uploads.prune_left(now),
            "jobs": durable.prune(now),
            "adapters": adapters.prune(now),
            "conversations": _delete(Conversation.objects.filter(expires_at__lte=now)),
            "sessions of completions": _delete(Session.objects.filter(expires_at__lte=now)),
            "usage records": _delete(UsageRecord.objects.filter(finished_at__lt=records)),
            "refusals": _delete(Refusal.objects.filter(hour__lt=records)),
            "wrong keys": _delete(WrongKey.objects.filter(hour__lt=now - SAMPLES_KEPT)),
            "stored prompts": _delete(StoredPrompt.objects.filter(created_at__lt=prompts)),
            "webhook deliveries": deliveries.prune(now - DELIVERIES_KEPT),
            "budget warnings": _delete(
                BudgetWarning.objects.filter(created_at__lt=now - SAMPLES_KEPT)
            ),
            "sessions": _delete(Login.objects.filter(expire_date__lt=now)),
            "load samples": _delete(LoadSample.objects.filter(at__lt=now - SAMPLES_KEPT)),
            "days of usage folded": ledger.fold(now - timedelta(days=settings.USAGE_HOUR_DAYS)),
        }
    )


def _delete(rows: QuerySet[Model]) -> int:
    """Delete in short transactions, because the ledger is written meanwhile."""
    deleted = 0
    while ids := list(rows.order_by().values_list("pk", flat=True)[:_BATCH_SIZE]):
        deleted += rows.model._default_manager.filter(pk__in=ids).delete()[0]
    return deleted
