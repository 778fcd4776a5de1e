"""Forecasts of 90 % hold for at least 85 % of simulated batches: their cost, and their time."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import pytest
from django.utils import timezone

from completions.batches.histogram import Histogram
from completions.batches.planning.forecast import forecast
from completions.batches.planning.order import Plan
from completions.models import Batch, BatchStatus

pytestmark = [pytest.mark.django_db, pytest.mark.long]

BATCHES, SEEDS = 40, (1, 2, 3)
LINES, PILOT, MAX_TOKENS = 400, 40, 256
PRICES = (500, 50, 2000)
"""Prices of a prompt token, a cached token and a completion token, in 1e-9."""
PROMPT_SECONDS, TOKEN_SECONDS = 0.0004, 0.002


@dataclass(frozen=True, slots=True)
class Simulated:
    """What a batch took."""

    lengths: Sequence[int]
    prompt_tokens: int
    planned: int
    """Prompt tokens that the plan expects to be computed."""
    cached: int
    seconds: float

    @property
    def cost(self) -> float:
        prompt, cheap, completion = PRICES
        computed = self.prompt_tokens - self.cached
        return (computed * prompt + self.cached * cheap + sum(self.lengths) * completion) / 1e9


def simulated(chance: random.Random) -> Simulated:
    """Lengths with a long tail, cut at MAX_TOKENS; the worker is more or less busy with others, and
    computes a prompt faster than an answer."""
    scale = chance.uniform(20, 120)
    lengths = [
        min(MAX_TOKENS, max(1, round(scale * chance.lognormvariate(0, 0.8)))) for _ in range(LINES)
    ]
    prompt = LINES * chance.randint(40, 200)
    planned = round(prompt * chance.uniform(0.3, 1))
    # The plan and what is measured agree within 2 %.
    cached = min(prompt, round((prompt - planned) * chance.uniform(0.98, 1.02)))
    work = (prompt - cached) * PROMPT_SECONDS + sum(lengths) * TOKEN_SECONDS
    return Simulated(lengths, prompt, planned, cached, work * chance.lognormvariate(0, 0.2))


def stored(owner, found: Simulated) -> None:
    began = timezone.now()
    Batch.objects.create(
        organization=owner.organization, api_key=owner.key, model="tiny", output_seconds=60,
        status=BatchStatus.COMPLETED, in_progress_at=began, expires_at=began,
        finalizing_at=began + timedelta(seconds=found.seconds), prompt_tokens=found.prompt_tokens,
        cached_tokens=found.cached, completion_tokens=sum(found.lengths),
    )  # fmt: skip


def forecast_of(owner, found: Simulated, chance: random.Random, pilot: int):
    """The forecast after a pilot, or before one where `pilot` is 0."""
    batch = Batch(
        organization=owner.organization, api_key=owner.key, model="tiny", total=LINES,
        endpoint="/v1/completions",
    )  # fmt: skip
    facts = {
        "lines": LINES, "least": LINES, "most": LINES * MAX_TOKENS, "grammars_without_least": 0,
        "lines_that_cannot_finish": 0, "cannot_finish": [],
    }  # fmt: skip
    done = Histogram()
    for length in chance.sample(found.lengths, pilot):
        done.add(length)
    plan = Plan(found.prompt_tokens, found.planned, found.prompt_tokens)
    return forecast(batch, facts, plan, timezone.now(), done)


@pytest.fixture
def prices(monkeypatch):
    entry = type("Entry", (), {"token_prices": PRICES})()
    monkeypatch.setattr("completions.catalog.model_files.load_catalog", lambda: {"tiny": entry})


@pytest.mark.parametrize("pilot", [0, PILOT])
@pytest.mark.parametrize("seed", SEEDS)
def test_cost_and_time_lie_in_their_intervals(owner, prices, seed, pilot):
    chance = random.Random(seed)  # noqa: S311
    for _ in range(8):
        stored(owner, simulated(chance))
    within = {"cost": 0, "seconds": 0}
    widths = {"cost": [], "seconds": []}
    for _ in range(BATCHES):
        found = simulated(chance)
        shown = forecast_of(owner, found, chance, pilot)
        for name, actual in (("cost", found.cost), ("seconds", found.seconds)):
            bounds = shown[name]
            within[name] += bounds["least"] <= actual <= bounds["most"]
            widths[name].append((bounds["most"] - bounds["least"]) / actual)
        stored(owner, found)
    assert min(within.values()) >= 0.85 * BATCHES, within
    if pilot:  # an interval that says nothing would cover everything
        assert sorted(widths["cost"])[BATCHES // 2] < 1.0
        assert sorted(widths["seconds"])[BATCHES // 2] < 2.5
