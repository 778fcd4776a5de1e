"""What is known of the ends of batches: read from SQL, predicted by `windows.py`, stored again."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from statistics import fmean
from typing import Any, NamedTuple

from completions.accounts.keys import Principal
from completions.batches import files
from completions.batches.planning.intervals import COVERED
from completions.batches.planning.speeds import measure_requests
from completions.batches.planning.windows import (
    MAX_ERRORS,
    Errors,
    Outlook,
    Queued,
    Track,
    Work,
    admit,
    estimate_tokens,
    find_spread,
    look_ahead,
    order,
)
from completions.batches.summary import BY_MODEL
from completions.exceptions import APIError, FieldError
from completions.models import Batch, BatchStatus, File
from completions.requests.model import find_given

_MEASURED = 20
"""The number of latest batches that say how long answers are."""
_SAMPLED_BYTES = 256 * 1024
"""What is read of a file to say which models it asks for, before it is validated."""
_UNREAD = ("errors", "metadata", "counted_fields", "forecast", "pace")
"""Columns of batches that no forecast needs."""
_STORED_AT_ONCE = 100
_LAST = datetime.max.replace(tzinfo=UTC).timestamp() - 1


class Forecast(NamedTuple):
    """The outlook of a batch on all of its models."""

    is_promised: bool
    seconds: float
    done_by: float
    probability: float

    @property
    def is_in_time(self) -> bool:
        return self.probability >= COVERED

    def to_json(self, now: datetime) -> dict[str, object]:
        return {**self._asdict(), "at": now.timestamp()}


class ModelQueue:
    """The batches that ask for one model, and what its earlier ones say of them."""

    def __init__(self, model: str, batches: Sequence[Batch], now: datetime) -> None:
        """`batches` has all that have not ended, of any model."""
        self._model = model
        self._batches = [each for each in batches if model in _list_models(each)]
        self._now = now

    @cached_property
    def _speed(self) -> float | None:
        """Tokens a second; None if the model has run nothing."""
        speeds = measure_requests(self._model)
        return fmean(speeds) if speeds else None

    @cached_property
    def _ended(self) -> list[Batch]:
        """The latest batches that ran to their end or to that of their window."""
        ended = Batch.objects.filter(
            model=self._model, status__in=(BatchStatus.COMPLETED, BatchStatus.EXPIRED)
        )
        return list(ended.order_by("-created_at")[:MAX_ERRORS])

    @cached_property
    def _ratio(self) -> float:
        """The usual ratio of completion tokens to the most; 1 while nothing is known."""
        return (
            _average(
                batch.completion_tokens / most
                for batch, most in self._list_measures("most")
                if batch.completion_tokens
            )
            or 1.0
        )

    def _list_measures(self, name: str) -> list[tuple[Batch, float]]:
        """Return the latest completed batches, each with a measure of its lines."""
        measured = [
            (batch, batch.by_model.get(self._model, {}).get(name))
            for batch in self._ended
            if batch.status == BatchStatus.COMPLETED
        ]
        return [(batch, number) for batch, number in measured if number][:_MEASURED]

    @cached_property
    def track(self) -> Track:
        """The errors of the forecasts that batches were admitted with: those that have ended, and
        those that already take longer. A held batch takes as long as its owner likes."""
        ratios: dict[bool, list[float]] = {True: [], False: []}
        running = sorted(self._batches, key=lambda each: each.created_at, reverse=True)
        for batch in [*running, *self._ended]:
            promise = batch.promise
            if not promise or not batch.model or batch.held:
                continue
            at, seconds, is_promised = promise["at"], promise["seconds"], promise["is_promised"]
            took = (batch.finalizing_at or self._now).timestamp() - at
            if batch.status == BatchStatus.COMPLETED or took > seconds:
                window = batch.expires_at.timestamp() - at
                spread = find_spread(seconds, window, is_promised=is_promised)
                ratios[is_promised].append(Errors.measure(seconds, took, spread))
        return Track(Errors(ratios[True]), Errors(ratios[False]))

    @cached_property
    def queue(self) -> list[Queued]:
        return [self.place(each) for each in self._batches if not each.held]

    def place(self, batch: Batch, tokens: float | None = None) -> Queued:
        """Return the place of a batch that asks for so many tokens, by default what is left of
        it."""
        if tokens is None:
            tokens = self._estimate_left(batch)
        return Queued(
            batch.id,
            batch.organization_id,
            batch.created_at.timestamp(),
            batch.expires_at.timestamp(),
            tokens / self._speed if self._speed else 0.0,
            is_promised=batch.promise["is_promised"] if batch.promise else False,
        )

    def _estimate_left(self, batch: Batch) -> float:
        part = batch.by_model.get(self._model)
        if part is None or "most" not in part:  # not validated yet, or by an earlier version
            return float((batch.outlook or {}).get("tokens", {}).get(self._model, 0.0))
        plan, ended, completion = part["plan"], 0, 0.0
        if len(batch.by_model) > 1:
            counted = batch.summary.get(BY_MODEL, {}).get(self._model, {})
            ended, completion = sum(counted.get("counts", {}).values()), counted.get("sum", 0)
        else:
            ended = max(0, batch.done - (batch.total - part["lines"]))
            completion = batch.completion_tokens
        prompt = (
            plan["prompt_tokens"] if plan["computed_tokens"] is None else plan["computed_tokens"]
        )
        work = Work(part["lines"], prompt, part["most"], ended, completion)
        return estimate_tokens(work, self._ratio)

    def estimate_tokens_of_file(self, size: float) -> float | None:
        """Estimate the tokens that so many bytes of a file ask for, from earlier files; None if
        there are none."""
        each = _average(
            (batch.prompt_tokens - batch.cached_tokens + batch.completion_tokens) / read
            for batch, read in self._list_measures("bytes")
            if batch.completion_tokens
        )
        return None if each is None else each * size

    def admit(self, batch: Batch, tokens: float | None = None) -> tuple[Queued, Outlook] | None:
        """Place a new batch; None if the model has run nothing."""
        if self._speed is None:
            return None
        others = [each for each in self.queue if each.id != batch.id]
        return admit(others, self.place(batch, tokens), self.track, self._now.timestamp())

    def look_ahead(self) -> Mapping[str, Outlook]:
        """Return the outlooks of all batches; none if the model has run nothing."""
        if self._speed is None:
            return {}
        return look_ahead(self.queue, self.track, self._now.timestamp())

    def list_turns(self) -> dict[str, int]:
        """Return when each batch is fed: the number of its organization's batches before it."""
        lanes: dict[int, list[Queued]] = defaultdict(list)
        for each in self.queue:
            lanes[each.organization_id].append(each)
        return {
            each.id: turn
            for lane in lanes.values()
            for turn, each in enumerate(order(lane, self._now.timestamp()))
        }


def _average(numbers: Any) -> float | None:
    """Return the geometric mean; None without numbers."""
    logs = [math.log(number) for number in numbers if number > 0]
    return math.exp(fmean(logs)) if logs else None


def _list_models(batch: Batch) -> Sequence[str]:
    if batch.model_ids:
        return batch.model_ids
    return tuple((batch.outlook or {}).get("tokens", {}))


def _list_open() -> list[Batch]:
    open_states = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS)
    rows = Batch.objects.filter(status__in=open_states).defer(*_UNREAD)
    return list(rows.order_by("created_at", "id"))


def forecast_valid(batch: Batch, now: datetime) -> Forecast | None:
    """Forecast the end of a batch whose lines are known; None while one of its models has run
    nothing."""
    every = _list_open()
    return _combine([ModelQueue(model, every, now).admit(batch) for model in batch.model_ids])


def forecast_file(batch: Batch, sizes: Mapping[str, float], now: datetime) -> Forecast | None:
    """Forecast the end of a batch from the sizes of its lines, as earlier files were; None if too
    little is known. Notes the tokens in the batch, so that others see them before it is
    validated."""
    if not sizes:
        return None
    admitted, tokens, every = [], {}, _list_open()
    for model, size in sizes.items():
        queue = ModelQueue(model, every, now)
        if (estimate := queue.estimate_tokens_of_file(size)) is None:
            return None
        tokens[model] = estimate
        admitted.append(queue.admit(batch, estimate))
    batch.outlook = {"tokens": tokens}
    return _combine(admitted)


def _combine(admitted: Sequence[tuple[Queued, Outlook] | None]) -> Forecast | None:
    """Return the forecast on all models, which run side by side."""
    known = [each for each in admitted if each is not None]
    if not known or len(known) < len(admitted):
        return None
    return Forecast(
        all(queued.is_promised for queued, _ in known),
        max(outlook.seconds for _, outlook in known),
        max(outlook.done_by for _, outlook in known),
        min(outlook.probability for _, outlook in known),
    )


def sample_models(file: File, principal: Principal) -> Mapping[str, float]:
    """Return the bytes of a file by model, as its first lines have them. Lines that the validation
    refuses count for none. Raises File.DoesNotExist."""
    named: dict[object, int] = defaultdict(int)
    with files.open_file(file) as content:
        for line in content.read(_SAMPLED_BYTES).splitlines():
            try:
                named[json.loads(line)["body"].get("model")] += len(line)
            except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
                continue
    sizes: dict[str, float] = defaultdict(float)
    for name, size in named.items():
        with suppress(APIError, FieldError):
            _, entry, _ = find_given(name, principal)
            sizes[entry.id] += size
    whole = sum(sizes.values())
    return {model: size / whole * file.bytes for model, size in sizes.items()}


def refresh(now: datetime) -> None:
    """Store the outlooks and the turns of all batches whose lines are known."""
    every = _list_open()
    running = {each.id: each for each in every if each.status == BatchStatus.IN_PROGRESS}
    queues = {
        model: ModelQueue(model, every, now)
        for model in {model for each in running.values() for model in each.model_ids}
    }
    outlooks = {model: queue.look_ahead() for model, queue in queues.items()}
    turns = {model: queue.list_turns() for model, queue in queues.items()}
    for batch in running.values():
        found = [outlooks[model].get(batch.id) for model in batch.model_ids]
        known = [each for each in found if each is not None]
        is_known = bool(known) and len(known) == len(found)
        outlook: dict[str, object] = {
            "at": now.timestamp(),
            "turns": {model: turns[model].get(batch.id, 0) for model in batch.model_ids},
            "done_by": max(each.done_by for each in known) if is_known else None,
            "probability": min(each.probability for each in known) if is_known else None,
        }
        batch.outlook = outlook
    Batch.objects.bulk_update(running.values(), ["outlook"], batch_size=_STORED_AT_ONCE)


def describe(batch: Batch) -> dict[str, object]:
    """Return the extension `deadline` of the batch object."""
    outlook = {} if batch.has_ended else (batch.outlook or {})
    promise = batch.promise or {}
    if not batch.has_ended and outlook.get("done_by") is None:
        outlook = promise  # until the first look at how it goes
    return {
        "ends_at": int(batch.expires_at.timestamp()),
        **_show(outlook),
        "admitted": _show(promise) if promise else None,
    }


def _show(forecast: Mapping[str, Any]) -> dict[str, object]:
    done_by, probability = forecast.get("done_by"), forecast.get("probability")
    return {
        "done_by": None if done_by is None else math.ceil(done_by),
        "probability": None if probability is None else round_probability(probability),
    }


def round_probability(probability: float) -> float:
    """Return a probability for clients, rounded down: none is 1."""
    return math.floor(probability * 1000) / 1000


def format_percent(probability: float) -> str:
    """Return a probability in percent, rounded down."""
    return f"{math.floor(probability * 100)} %"


def format_time(seconds: float) -> str:
    """Return the second of a Unix time at which it has passed, or the last one of the calendar."""
    at = datetime.fromtimestamp(min(math.ceil(seconds), _LAST), UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}"


def explain_late(forecast: Forecast, expires_at: datetime) -> str:
    """Say that a batch is refused because it would probably not end in its window."""
    return (
        f"completion_window: it ends at {expires_at:%Y-%m-%d %H:%M:%S} UTC, and the forecast is "
        f"done by {format_time(forecast.done_by)} UTC with a probability of 90 %; in the window, "
        f'{format_percent(forecast.probability)}. Send a longer window, or "on_late": "accept".'
    )
