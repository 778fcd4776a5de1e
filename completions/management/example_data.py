"""A month of plausible usage, for looking at the admin and for testing it.

Its organizations begin with MARK, its models with `example-`, and its audit entries are by ACTOR,
so `remove` finds exactly this data. The secrets of its keys are discarded.
"""

import math
import random
import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import NamedTuple

from django.db import transaction

from completions.accounts import changes
from completions.accounts.audit import Actor
from completions.database.parts import parts
from completions.management.example_batches import Nights, make_stories
from completions.models import (
    ApiKey,
    AuditEntry,
    LoadSample,
    Organization,
    Refusal,
    UsageHour,
    UsageRecord,
)
from completions.usage import ledger

MARK = "Example: "
ACTOR = Actor("example_data")
_BATCH_SIZE = 2000


class ExampleDataExistsError(Exception):
    """The example data exists already."""


class _Model(NamedTuple):
    id: str
    slots: int
    first_token_ms: float
    tokens_per_second: float
    prices: tuple[int, int, int]
    """Billionths of the currency per prompt, cached and completion token."""


SMALL = _Model("example-small", 64, 90, 95, (150, 30, 600))
LARGE = _Model("example-large", 16, 420, 38, (900, 180, 3600))


class _Use(NamedTuple):
    organization: str
    name: str
    weight: float
    """Relative share of all requests."""
    model: _Model
    kind: str
    prompt: int
    """Median number of prompt tokens."""
    output: int
    """Median number of output tokens."""
    cached: float
    """Share of prompt tokens found in the prefix cache."""
    forced: float
    """Share of output tokens forced by a grammar."""
    limits: Mapping[str, int] = MappingProxyType({})


_USES = (
    _Use(
        "Search",
        "query rewriting",
        30,
        SMALL,
        "sync",
        240,
        24,
        0.7,
        0.45,
        {"requests_per_minute": 600, "tokens_per_minute": 400_000},
    ),
    _Use("Search", "snippets", 16, SMALL, "stream", 900, 90, 0.35, 0),
    _Use(
        "Support",
        "reply drafts",
        14,
        LARGE,
        "stream",
        1600,
        260,
        0.55,
        0,
        {"max_concurrency": 24, "monthly_token_budget": 400_000_000},
    ),
    _Use(
        "Support",
        "ticket triage",
        12,
        SMALL,
        "sync",
        700,
        40,
        0.8,
        0.62,
        {"requests_per_minute": 120},
    ),
    _Use(
        "Documents",
        "nightly extraction",
        20,
        LARGE,
        "batch",
        2200,
        180,
        0.2,
        0.4,
        {"max_enqueued_tokens": 50_000_000, "daily_cost_budget": 40},
    ),
    _Use("Documents", "ad hoc questions", 3, LARGE, "stream", 3000, 320, 0.3, 0),
    _Use("Research", "experiments", 4, SMALL, "background", 400, 500, 0.1, 0),
    _Use("Research", "notebook", 1, LARGE, "sync", 500, 200, 0.05, 0),
)
_ERRORS = {"queue_timeout": 4, "generation_timeout": 2, "worker_error": 2, "grammar_error": 3}
"""Relative frequency of each error."""
_REFUSALS = (
    ("rate_limit_exceeded", 40, "Requests per minute: 600 of 600 used. Retry after 7 s."),
    ("context_length_exceeded", 6, "The prompt has 9,120 tokens; the model's context has 8,192."),
    ("invalid_value", 3, "temperature: 3 is out of range; it must be from 0 to 2."),
)
"""Code, mean number an hour and latest message."""
_STATUSES = ("failed", "completed", "cancelled")
_PATIENCE_MS = 300_000
"""Timeout of calls and streams."""


def fill(
    requests: int, now: datetime, days: int = 30, tell: Callable[[int], None] = lambda count: None
) -> None:
    """Create the data for the `days` before `now`. Calls `tell` with the number of requests so far.
    Raises ExampleDataExistsError."""
    if Organization.objects.filter(name__startswith=MARK).exists():
        raise ExampleDataExistsError
    chance = random.Random(1)  # noqa: S311 - nothing secret is drawn
    keys = _keys()
    last_used: dict[int, datetime] = {}
    nights, made = Nights(LARGE.id, chance), 0
    for group in parts(_records(keys, requests, now, days, chance), _BATCH_SIZE):
        nights.take_lines(group)
        with transaction.atomic():
            UsageRecord.objects.bulk_create(group)
            ledger.add_up(group)
        for record in group:
            last_used[record.api_key_id] = record.finished_at
        made += len(group)
        tell(made)
    for key_id, moment in last_used.items():
        ApiKey.objects.filter(pk=key_id).update(last_used_at=moment)
    for samples in parts(_samples(now, days, chance), _BATCH_SIZE):
        LoadSample.objects.bulk_create(samples)
    with transaction.atomic():
        nightly = next(key for key, use in zip(keys, _USES, strict=True) if use.kind == "batch")
        nights.save(nightly, now)
        make_stories(nightly, LARGE.id, now)
        _refusals(keys, now, days, chance)
        changes.rotate(keys[0], timedelta(hours=24), ACTOR)
        old, _ = changes.create(keys[-1].organization, "old notebook", ACTOR)
        changes.revoke(old, ACTOR)


def remove() -> int:
    """Delete the data. Returns the number of organizations deleted."""
    organizations = Organization.objects.filter(name__startswith=MARK)
    ids = list(organizations.values_list("id", flat=True))
    # A cascade loads every row into memory, and a million records would not fit.
    for model in (UsageRecord, UsageHour):
        rows = model._default_manager.filter(organization_id__in=ids)
        rows._raw_delete(rows.db)
    LoadSample.objects.filter(model__in=(SMALL.id, LARGE.id)).delete()
    AuditEntry.objects.filter(actor=ACTOR.name).delete()
    organizations.delete()
    return len(ids)


def _keys() -> list[ApiKey]:
    """Create one key per entry of _USES, in the same order."""
    keys = []
    for use in _USES:
        owner = changes.find_organization(f"{MARK}{use.organization}", ACTOR)
        key, _ = changes.create(owner, use.name, ACTOR, allowed_models=[use.model.id], **use.limits)
        keys.append(key)
    return keys


# Requests ----------------------------------------------------------------------------------------


def _records(
    keys: list[ApiKey], requests: int, now: datetime, days: int, chance: random.Random
) -> Iterator[UsageRecord]:
    """Yield records by time: more at noon than at night, fewer at weekends, one incident."""
    hours = [now - timedelta(hours=i) for i in range(days * 24, 0, -1)]
    total = sum(map(_busyness, hours))
    pairs = list(zip(_USES, keys, strict=True))
    shares = [use.weight for use in _USES]
    for hour in hours:
        count = requests * _busyness(hour) / total
        many = int(count) + (chance.random() < count % 1)
        moments = sorted(hour + timedelta(hours=chance.random()) for _ in range(many))
        for moment, (use, key) in zip(moments, chance.choices(pairs, shares, k=many), strict=True):
            yield _record(use, key, moment, _in_incident(moment, now), chance)


def _busyness(hour: datetime) -> float:
    daily = 1 + 0.75 * math.cos((hour.hour - 13) / 24 * 2 * math.pi)
    return daily * (0.45 if hour.weekday() >= 5 else 1)


def _in_incident(moment: datetime, now: datetime) -> bool:
    return abs(moment - (now - timedelta(hours=9))) < timedelta(minutes=45)


def _around(median: float, spread: float, chance: random.Random) -> int:
    return round(median * math.exp(chance.gauss(0, spread)))


def _record(
    use: _Use, key: ApiKey, finished: datetime, bad: bool, chance: random.Random
) -> UsageRecord:
    status = chance.choices(_STATUSES, (30, 68, 2) if bad else (0.8, 97.7, 1.5))[0]
    error = chance.choices(list(_ERRORS), list(_ERRORS.values()))[0] if status == "failed" else ""
    if use.kind == "batch" and error.endswith("timeout"):
        error = "worker_error"  # lines have hours, so they do not time out
    prompt = max(1, _around(use.prompt, 0.5, chance))
    output = max(1, _around(use.output, 0.6, chance))
    if status != "completed":
        output //= 2
    cached = round(prompt * use.cached) if chance.random() < 0.9 else 0
    queued = _around(40_000 if use.kind == "batch" else 900 if bad else 6, 1.0, chance)
    prefill = _around(use.model.first_token_ms * (4 if bad else 1), 0.35, chance)
    decode = _around(1000 * output / use.model.tokens_per_second, 0.15, chance)
    ran = error != "queue_timeout"
    if not ran:
        queued, prefill, decode, prompt, output, cached = _PATIENCE_MS, 0, 0, 0, 0, 0
    elif error == "generation_timeout":
        decode = _PATIENCE_MS - queued - prefill
    costs = zip(use.model.prices, (prompt - cached, cached, output), strict=True)
    run = prefill + decode
    return UsageRecord(
        job_id=f"cmpl-{uuid.UUID(int=chance.getrandbits(128)).hex}",
        request_id=f"req_{uuid.UUID(int=chance.getrandbits(128)).hex}",
        organization_id=key.organization_id,
        api_key_id=key.pk,
        model=use.model.id,
        kind=use.kind,
        status=status,
        error_code=error,
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=output,
        forced_tokens=round(output * use.forced),
        cost_nanos=sum(price * count for price, count in costs),
        queued_ms=queued if ran else None,
        first_token_ms=queued + prefill if output else None,
        run_ms=run if ran else None,
        attempts=2 if error == "worker_error" else int(ran),
        worker=f"example-host-{chance.randint(1, 2)}" if ran else "",
        parameters={"max_tokens": 2 * max(use.output, output), "temperature": 0.7},
        created_at=finished - timedelta(milliseconds=queued + run),
        finished_at=finished,
    )


def _samples(now: datetime, days: int, chance: random.Random) -> Iterator[LoadSample]:
    end = now.replace(second=0, microsecond=0)
    for i in range(days * 288):
        moment = end - timedelta(minutes=5 * i)
        busy = _busyness(moment) / 1.75
        bad = _in_incident(moment, now)
        for model in (SMALL, LARGE):
            load = min(1.0, busy * chance.uniform(0.4, 0.7) + (0.6 if bad else 0))
            waits = max(0.0, load - 0.85) * 60
            yield LoadSample(
                at=moment,
                model=model.id,
                workers=2,
                slots=2 * model.slots,
                running=round(2 * model.slots * load),
                queued_interactive=_around(waits, 0.3, chance),
                queued_background=_around(2 + waits, 0.5, chance),
                queued_batch=_around(30, 0.5, chance) if moment.hour < 5 else 0,
            )


def _refusals(keys: list[ApiKey], now: datetime, days: int, chance: random.Random) -> None:
    hour = now.replace(minute=0, second=0, microsecond=0)
    Refusal.objects.bulk_create(
        Refusal(
            organization_id=key.organization_id,
            api_key=key,
            code=code,
            hour=hour - timedelta(hours=hours_ago),
            count=1 + _around(mean, 0.7, chance),
            at=hour - timedelta(hours=hours_ago, minutes=-chance.randrange(60) * (hours_ago > 0)),
            message=message,
            request_id=f"req_{uuid.UUID(int=chance.getrandbits(128)).hex}",
        )
        for hours_ago in range(days * 24)
        for key in keys
        for code, mean, message in _REFUSALS
        if chance.random() < 0.05
    )
