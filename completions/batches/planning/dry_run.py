"""`dry_run`: validates a file like a batch, runs nothing, and forecasts tokens, cost and time."""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from django.conf import settings
from django.utils import timezone

from completions.batches import states
from completions.batches.input_lines import LineError
from completions.batches.planning import outlook
from completions.batches.planning.forecast import Tally, forecast
from completions.batches.planning.order import Plan
from completions.batches.validation import SHOWN_ERRORS, CacheOf, Check, RefusedLine
from completions.batches.writing import Alive
from completions.grammars import Validator
from completions.models import Batch, BatchLine


class DryRunResult(NamedTuple):
    """What a dry run found."""

    forecast: Mapping[str, object]
    is_valid: bool
    """Whether the batch would run."""


def perform_dry_run(
    batch: Batch, validator: Validator, cache_of: CacheOf, alive: Alive = lambda: True
) -> DryRunResult:
    """Forecast an unsaved batch. Stores nothing, and reserves no ids.

    Raises InterruptedValidationError once `alive` returns False.
    """
    with asyncio.Runner() as loop, tempfile.TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR) as log:
        check = _DryRunCheck(batch, validator, loop, log, None, cache_of)
        try:
            check.run(alive)
            if not check.errors:
                states.require_room(batch, batch.api_key)
        except LineError as error:
            check.note(error)
    plan = Plan(**batch.plan) if batch.plan else Plan(0, 0, 0)
    result = forecast(batch, batch.forecast or Tally().facts(), plan, timezone.now())
    is_valid = not check.errors
    if not is_valid:  # figures of the lines mean nothing then
        result = {name: result[name] if name in _FILE_FACTS else None for name in result}
    errors = (check.errors or check.refused)[:SHOWN_ERRORS]
    result |= {
        "invalid_lines": check.invalid,
        "would_run": is_valid,
        "deadline": _forecast_end(batch) if is_valid else None,
        "errors": {"object": "list", "data": errors} if errors else None,
    }
    return DryRunResult(result, is_valid)


def _forecast_end(batch: Batch) -> dict[str, object]:
    now = timezone.now()
    found = outlook.forecast_valid(batch, now)
    batch.promise = found and found.to_json(now)
    shown = outlook.describe(batch)
    del shown["admitted"]
    return shown


_FILE_FACTS = ("object", "endpoint", "model", "lines")


class _DryRunCheck(Check):
    def __init__(self, batch: Batch, *others: Any) -> None:
        super().__init__(batch, *others)
        self._has_forecast = True
        self.refused: list[dict[str, object]] = []

    def _require_open(self) -> None:
        """Do nothing: there is no batch that could be cancelled."""

    def _store(self, rows: Sequence[BatchLine]) -> None:
        """Do nothing: a dry run stores no rows."""

    def _refuse(self, number: int, line: RefusedLine) -> BatchLine:
        if len(self.refused) < SHOWN_ERRORS:
            error = line.to_line_error()
            error.line = number
            self.refused.append(asdict(error))
        return super()._refuse(number, line)

    def _store_order(self, order: Sequence[int], alive: object) -> None:
        """Do nothing: no rows wait for their positions."""
