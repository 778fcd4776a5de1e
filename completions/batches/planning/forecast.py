"""Forecasts a batch's tokens, cost and time before it runs, and refines them with its results."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, NamedTuple

from completions.accounts.keys import read_budget
from completions.batches.histogram import Histogram
from completions.batches.planning.intervals import Interval, predict_next, predict_sum
from completions.batches.planning.order import Plan
from completions.batches.planning.speeds import measure_speeds
from completions.batches.summary import BY_MODEL
from completions.catalog import model_files
from completions.contract.job_request import JobRequest
from completions.grammars import TokenSource
from completions.grammars.lengths import Bounds, find_bounds
from completions.grammars.lengths.bounds import UNKNOWN
from completions.models import ApiKey, Batch
from completions.requests import validation
from completions.usage import budgets

MAX_LISTED = 100
"""The most custom_ids listed for lines that cannot finish."""
_LISTED = "cannot_finish"
GRAMMAR_SECONDS = 20.0
"""Seconds to compute the bounds of a file's grammars; the remaining bounds stay unknown."""


class Tally:
    """Adds up the token bounds of the lines. Its facts are JSON that is stored with the batch."""

    def __init__(self) -> None:
        self._lines = self._least = self._most = self._unfinishable = 0
        self._unknown = 0
        self._cannot_finish: list[str] = []
        self._until: float | None = None

    def add(self, custom_id: str, request: JobRequest, source: TokenSource) -> None:
        most = request.sampling.max_tokens
        choices = len(request.prompts) * request.sampling.num_candidates
        bounds = self._bounds(request.grammar, source)
        self._lines += 1
        self._unknown += bounds.min_tokens is None and request.grammar is not None
        if bounds.at_least > most:
            self._unfinishable += 1
            if len(self._cannot_finish) < MAX_LISTED:
                self._cannot_finish.append(custom_id)
        self._least += choices * min(most, max(bounds.at_least, request.sampling.min_tokens))
        self._most += choices * (
            most if bounds.max_tokens is None else min(most, bounds.max_tokens)
        )

    def _bounds(self, grammar: str | None, source: TokenSource) -> Bounds:
        if grammar is None or (self._until is not None and time.monotonic() > self._until):
            return UNKNOWN
        if self._until is None:
            self._until = time.monotonic() + GRAMMAR_SECONDS
        return find_bounds(grammar, source)

    def facts(self) -> dict[str, object]:
        """Return the facts as JSON. `grammars_without_least` counts the lines whose minimum was not
        found; `least` then has a lower bound for them."""
        return {
            "lines": self._lines,
            "least": self._least,
            "most": self._most,
            "grammars_without_least": self._unknown,
            "lines_that_cannot_finish": self._unfinishable,
            "cannot_finish": self._cannot_finish,
        }


def add_facts(facts: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    """Return the facts of all lines, from those of each model."""
    whole = {name: sum(each[name] for each in facts) for name in facts[0] if name != _LISTED}
    return {**whole, _LISTED: [id for each in facts for id in each[_LISTED]][:MAX_LISTED]}


class _Part(NamedTuple):
    """The lines of one model. `done` holds the completion tokens of those that have ended."""

    model: str
    facts: Mapping[str, Any]
    plan: Plan
    done: Histogram | None


class _Estimate(NamedTuple):
    """What the lines of one model take."""

    model: str
    lines: int
    tokens: Interval
    computed: int
    """Prompt tokens."""
    cached: int
    cost: Interval
    """In billionths."""
    seconds: Interval | None

    def show(self) -> dict[str, object]:
        return {
            "model": self.model or None,
            "lines": self.lines,
            "prompt_tokens": self.computed + self.cached,
            "cached_prompt_tokens": self.cached,
            "completion_tokens": _format_interval(self.tokens),
            "cost": {name: _money(each) for name, each in self.cost._asdict().items()},
            "seconds": self.seconds and _format_interval(self.seconds, digits=1),
        }


def forecast(
    batch: Batch, facts: Mapping[str, Any], plan: Plan, now: datetime, done: Histogram | None = None
) -> dict[str, object]:
    """Make the response of `dry_run`. `done` holds the completion tokens of ended lines."""
    parts = [_estimate(batch, part) for part in _list_parts(batch, facts, plan, done)]
    tokens = _combine(sum, [part.tokens for part in parts])
    cost = _combine(sum, [part.cost for part in parts])
    seconds = [part.seconds for part in parts if part.seconds is not None]
    # Workers of different models run side by side.
    longest = _combine(max, seconds) if len(seconds) == len(parts) else None
    cached = sum(part.cached for part in parts)
    return {
        "object": "batch.forecast",
        "endpoint": batch.endpoint,
        "model": batch.model or None,
        "lines": batch.total,
        "invalid_lines": batch.total - facts["lines"],
        "prompt_tokens": plan.prompt_tokens,
        "cached_prompt_tokens": cached,
        "completion_tokens": _format_interval(tokens),
        "grammars_without_least": facts["grammars_without_least"],
        "cost": _show_cost(batch, cost, plan.prompt_tokens + (tokens.most or 0), now),
        "seconds": longest and _format_interval(longest, digits=1),
        "lines_that_cannot_finish": facts["lines_that_cannot_finish"],
        "cannot_finish": facts["cannot_finish"],
        "lines_run": done.count if done else 0,
        "models": [part.show() for part in parts],
    }


def _list_parts(
    batch: Batch, facts: Mapping[str, object], plan: Plan, done: Histogram | None
) -> list[_Part]:
    if len(batch.by_model) < 2:
        return [_Part(batch.model, facts, plan, done)]
    ended = batch.summary.get(BY_MODEL, {}) if done is not None else {}
    return [
        _Part(model, each["forecast"], Plan(**each["plan"]), Histogram(ended.get(model)))
        for model, each in batch.by_model.items()
    ]


def _estimate(batch: Batch, part: _Part) -> _Estimate:
    tokens = _completion_tokens(part.facts, part.done)
    plan = part.plan
    computed = plan.prompt_tokens if plan.computed_tokens is None else plan.computed_tokens
    cached = plan.prompt_tokens - computed
    return _Estimate(
        part.model,
        part.facts["lines"],
        tokens,
        computed,
        cached,
        _cost(part.model, tokens, computed, cached),
        _seconds(part.model, batch, tokens, computed),
    )


def _combine(
    function: Callable[[Iterable[float]], float], intervals: Sequence[Interval]
) -> Interval:
    """Return the interval whose bounds the function makes of all; None where one has none."""
    least, most, expected = (
        None if None in bounds else function(bounds) for bounds in zip(*intervals, strict=True)
    )
    return Interval(least, most, expected)


def _completion_tokens(facts: Mapping[str, Any], done: Histogram | None) -> Interval:
    least, most = facts["least"], facts["most"]
    narrow = predict_sum(done, max(0, facts["lines"] - done.count)) if done else None
    if narrow is None or narrow.least is None or narrow.most is None or narrow.expected is None:
        return Interval(least, most, None)
    within = [min(max(each, least), most) for each in narrow]
    return Interval(within[0], within[1], within[2])


def _cost(model: str, tokens: Interval, computed: int, cached: int) -> Interval:
    """Estimate the cost at the model's prices, in billionths."""
    entry = model_files.load_catalog().get(model)
    prompt, cheap, completion = (entry.token_prices if entry else ()) or (0.0, 0.0, 0.0)
    least_prompt = cached * cheap + computed * prompt
    most_prompt = (cached + computed) * max(prompt, cheap)
    return Interval(
        _plus(tokens.least, completion, least_prompt),
        _plus(tokens.most, completion, most_prompt),
        _plus(tokens.expected, completion, least_prompt),
    )


def _show_cost(
    batch: Batch, cost: Interval, most_tokens: float, now: datetime
) -> dict[str, object]:
    """Return the cost, and what the budgets of the key and its organization leave."""
    left = _find_smallest_budget(batch, now)
    enough_cost = left["cost_nanos"] is None or (cost.most or 0) <= left["cost_nanos"]
    enough_tokens = left["tokens"] is None or most_tokens <= left["tokens"]
    return {
        **{name: _money(each) for name, each in cost._asdict().items()},
        "budget_left": _money(left["cost_nanos"]),
        "tokens_left": left["tokens"],
        "within_budgets": enough_cost and enough_tokens,
    }


def _plus(tokens: float | None, price: float, fixed: float) -> float | None:
    return None if tokens is None else tokens * price + fixed


def _money(nanos: float | None) -> float | None:
    return None if nanos is None else round(nanos / 1e9, 9)


def _find_smallest_budget(batch: Batch, now: datetime) -> dict[str, Any]:
    """Return the smallest remaining budget of the key and its organization; None if there is no
    budget."""
    key = ApiKey.objects.select_related("organization").get(id=batch.api_key_id)
    left: dict[str, list[int]] = {"tokens": [], "cost": []}
    for column, owner in (("api_key_id", key), ("organization_id", key.organization)):
        spent = budgets.sum_spent(column, [owner.pk], now)[owner.pk]
        for name, most in asdict(read_budget(owner)).items():
            if most is not None:
                left[name.partition("_")[2]].append(max(0, most - getattr(spent, name)))
    return {
        "tokens": min(left["tokens"], default=None),
        "cost_nanos": min(left["cost"], default=None),
    }


def _seconds(model: str, batch: Batch, tokens: Interval, computed: int) -> Interval | None:
    """Estimate the time for the computed tokens at the model's speed; None until it has run
    anything. A speed without bounds counts as it is."""
    speed = predict_next(measure_speeds(model, batch))
    if speed is None or speed.expected is None:
        return None
    work = [None if each is None else each + computed for each in tokens]
    return Interval(
        work[0] / (speed.most or speed.expected) if work[0] is not None else None,
        work[1] / (speed.least or speed.expected) if work[1] is not None else None,
        work[2] / speed.expected if work[2] is not None else None,
    )


def _format_interval(interval: Interval, digits: int = 0) -> dict[str, float | None]:
    return {
        name: None if each is None else round(each, digits or None)
        for name, each in interval._asdict().items()
    }


def forecast_batch(batch: Batch, now: datetime) -> dict[str, object] | None:
    """Return the forecast of a batch with a pilot, refined by its results so far; None without a
    pilot."""
    if batch.pilot is None or not batch.forecast or not batch.plan:
        return None
    done = Histogram(batch.summary.get("completion_tokens"))
    return forecast(batch, batch.forecast, Plan(**batch.plan), now, done)


def load_token_source(model: str) -> TokenSource:
    """Return the vocabulary of a served model, as its tokens."""
    entry = model_files.load_catalog().get(model)
    assert entry is not None, "a line that was prepared has a served model"
    return validation.make_token_source(model_files.load(entry))
