"""Validates a whole input file before its first line runs, with the checks of live requests."""

import asyncio
import hashlib
import logging
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from http import HTTPStatus
from itertools import pairwise
from typing import IO

import orjson
from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.utils import timezone
from redis.exceptions import RedisError

from completions.accounts import keys
from completions.batches import files, lines, states, writing
from completions.batches.counted_fields import SharedSchema, find_schema
from completions.batches.input_lines import LineError, groups, is_blank, parse
from completions.batches.line_preparation import prepare_line
from completions.batches.planning import outlook
from completions.batches.planning.cache import CacheSize
from completions.batches.planning.forecast import add_facts
from completions.batches.planning.lines_of_model import LinesOfModel
from completions.batches.planning.order import add_plans, store
from completions.batches.summary import Summary
from completions.batches.writing import Alive
from completions.catalog.model_files import ModelFilesError
from completions.catalog.tokenization import TokenizerProcessError
from completions.exceptions import APIError
from completions.grammars import Caller, Validator
from completions.jobs.rids import BatchRids
from completions.models import (
    ApiKey,
    Batch,
    BatchLine,
    BatchStatus,
    File,
    LineState,
    OnInvalid,
    OnLate,
)
from completions.models.organizations import lock_organization
from completions.models.storable import replace_nul
from completions.requests.fair_semaphore import Checks
from completions.requests.preparation import PreparedRequest

logger = logging.getLogger(__name__)

SHOWN_ERRORS = 100
"""The most errors in the batch object. The error file has all of them."""
MAX_PARALLEL_CHECKS = 4
"""The number of lines in a group that are validated concurrently."""
_TRANSIENT = (ModelFilesError, RedisError, OperationalError, InterfaceError, OSError, MemoryError)
"""Faults of the service, not of a line: the validation is tried again."""
_SCORED = "continuation_token_ids"
"""The field of a line that samples nothing, so that nothing of it is closed."""
_TAKEN = "rid: {} was used by this API key in the last 24 hours; send a new id."


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """A line whose body would get an error as a live request."""

    custom_id: str
    error: APIError

    def to_line_error(self) -> LineError:
        """Return the refusal as an error of the file."""
        param = f"body.{self.error.param}" if self.error.param else "body"
        return LineError(self.error.code, self.error.message, param)


_Checked = LineError | RefusedLine | tuple[str, PreparedRequest]
"""A line's error, or its custom_id and its job."""


CacheOf = Callable[[str], CacheSize | None]
"""The size of a model's KV cache, if a worker has reported it."""


class InterruptedValidationError(Exception):
    """Another worker has taken over and starts from the beginning."""


class _ClosedError(Exception):
    """The batch was cancelled or has expired."""


def validate(
    batch: Batch,
    validator: Validator,
    alive: Alive,
    rids: BatchRids,
    cache_of: CacheOf = lambda _model: None,
) -> None:
    """Validate and store every line, then start the batch, or fail it with all errors.

    A refused line is stored with its error as its result, unless `on_invalid` is `fail`. What an
    interrupted validation stored is deleted first. Raises InterruptedValidationError.
    """
    writing.delete_lines(batch)
    with asyncio.Runner() as loop, tempfile.TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR) as log:
        check = Check(batch, validator, loop, log, rids, cache_of)
        try:
            check.run(alive)
            if not check.errors:
                _begin(batch)
        except LineError as error:
            check.note(error)
        except _ClosedError:
            rids.free()
            writing.delete_lines(batch)
            return
        if check.errors:
            rids.free()
            _fail(batch, check.errors[:SHOWN_ERRORS], log)


class Check:
    """One pass over the lines of a batch."""

    def __init__(
        self,
        batch: Batch,
        validator: Validator,
        loop: asyncio.Runner,
        log: IO[bytes],
        rids: BatchRids | None,
        cache_of: CacheOf,
    ) -> None:
        self._batch = batch
        self._checks = Checks(validator)
        self._loop = loop
        self._log = log
        self._rids = rids
        self._cache_of = cache_of
        self._principal = keys.make_principal(batch.api_key)
        self._asker = Caller(batch.organization_id)
        self._seen: dict[bytes, int] = {}
        self._schema = SharedSchema()
        self._summary = Summary(None)
        self._has_forecast = batch.pilot is not None
        self._by_model: dict[str, LinesOfModel] = {}
        self.errors: list[dict[str, object]] = []
        """The first errors. The log receives all of them."""
        self.invalid = 0
        """Lines with an error or a refused body."""

    def run(self, alive: Alive) -> None:
        """Validate all lines. Raises LineError if the file as a whole is invalid."""
        for group in groups(self._read_lines()):
            if not alive():
                raise InterruptedValidationError
            self._require_open()
            checked = self._reserve_rids(group, self._loop.run(self._check_group(group)))
            rows = (
                self._make_row(number, each, len(text))
                for (number, text), each in zip(group, checked, strict=True)
            )
            self._store([row for row in rows if row is not None])
        if not self._batch.total and not self.errors:
            raise LineError("empty_file", "The file has no requests.")
        if not self.errors:
            self._finish(alive)

    def _finish(self, alive: Alive) -> None:
        """Store what is known once all lines are read. Raises InterruptedValidationError."""
        self._batch.counted_fields = self._schema.counted_fields
        self._batch.summary = self._summary.as_dict()
        if not self._by_model:
            return
        planned = {model: (lines.facts, *lines.order()) for model, lines in self._by_model.items()}
        self._batch.model = next(iter(planned)) if len(planned) == 1 else ""
        self._batch.by_model = {
            model: {"plan": plan._asdict(), "forecast": facts, **self._by_model[model].measure()}
            for model, (facts, _, plan) in planned.items()
        }
        self._batch.plan = add_plans([plan for _, _, plan in planned.values()])._asdict()
        order: Sequence[int] = [number for _, order, _ in planned.values() for number in order]
        if self._has_forecast:
            self._batch.forecast = add_facts([facts for facts, _, _ in planned.values() if facts])
            order = self._put_pilot_first(order)
        self._store_order(order, alive)

    def _store_order(self, order: Sequence[int], alive: Alive) -> None:
        # The lines of a pilot are those before a position, which counts from 0 without gaps.
        is_new = self._has_forecast or any(one > other for one, other in pairwise(order))
        if is_new and not store(self._batch, order, alive):
            raise InterruptedValidationError

    def _put_pilot_first(self, order: Sequence[int]) -> Sequence[int]:
        """Return the order with the pilot's lines, drawn at random, in front."""
        size = min(self._batch.pilot or 0, len(order))
        draw = random.Random(self._batch.id)  # noqa: S311 - the same lines if validation restarts
        pilot = draw.sample(list(order), size)
        self._batch.pilot = size
        chosen = set(pilot)
        return [*pilot, *(number for number in order if number not in chosen)]

    def _require_open(self) -> None:
        validating = Batch.objects.filter(id=self._batch.id, status=BatchStatus.VALIDATING)
        if not validating.exists():
            raise _ClosedError

    def _store(self, rows: Sequence[BatchLine]) -> None:
        BatchLine.objects.bulk_create(rows)

    def note(self, error: LineError) -> None:
        self.invalid += error.line is not None
        self._log.write(orjson.dumps(asdict(error)) + b"\n")
        if len(self.errors) < SHOWN_ERRORS:
            self.errors.append(asdict(error))

    def _read_lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the number and the text of every line that is not blank. Raises LineError."""
        try:
            opened = files.open_file(File.objects.get(id=self._batch.input_file_id))
        except File.DoesNotExist as error:
            message = "The input file was deleted, has expired or was lost. Upload it again."
            raise LineError("file_not_found", message) from error
        most = settings.MAX_BODY_BYTES
        with opened as content:
            number = 0
            while text := content.readline(most + 1):
                number += 1
                if len(text) > most:
                    raise LineError(
                        "line_too_long",
                        f"The line is longer than {most} bytes. Shorten it.",
                        line=number,
                    )
                if is_blank(text):
                    continue
                self._batch.total += 1
                if self._batch.total > settings.MAX_BATCH_LINES:
                    message = (
                        f"The file has more than {settings.MAX_BATCH_LINES} requests. Split it."
                    )
                    raise LineError("too_many_tasks", message)
                yield number, text

    def _require_budget(self, number: int) -> None:
        """Raise LineError if the checks of the file's constraints have taken too long."""
        most = settings.BATCH_GRAMMAR_SECONDS
        if self._asker.spent > most:
            message = (
                f"Checking the constraints before line {number} took {self._asker.spent:.0f} "
                f"seconds of processor time; one file may take {most:g}. Split the file, or send "
                "simpler or fewer different constraints: equal ones are checked once."
            )
            raise LineError("grammar_budget_exceeded", message, line=number)

    async def _check_group(self, group: Sequence[tuple[int, bytes]]) -> list[_Checked]:
        turns = asyncio.Semaphore(MAX_PARALLEL_CHECKS)
        return await asyncio.gather(*(self._prepare(turns, *numbered) for numbered in group))

    async def _prepare(self, turns: asyncio.Semaphore, number: int, text: bytes) -> _Checked:
        try:
            request = parse(text, self._batch.endpoint)
            custom_id = request["custom_id"]
            self._require_unique(custom_id, number)
        except LineError as error:
            return error
        where = self._batch.endpoint, self._batch.job_id(number)
        body = request["body"]
        if self._batch.close and isinstance(body, dict) and _SCORED not in body:
            body = {"close": True, **body}
        try:
            async with turns:
                self._require_budget(number)
                return custom_id, await prepare_line(
                    self._checks, *where, body, self._principal, self._asker
                )
        except LineError:  # of the whole file
            raise
        except APIError as error:
            if error.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            return RefusedLine(custom_id, error)
        except TokenizerProcessError as error:  # perhaps because of the text: not tried for ever
            return RefusedLine(custom_id, APIError("server_overloaded", str(error)))
        except _TRANSIENT:
            raise
        except Exception:  # it would recur in each try, and hold up the whole batch
            logger.exception("unhandled exception in line %d of %s", number, self._batch.id)
            return RefusedLine(custom_id, APIError("internal_error"))

    def _reserve_rids(
        self, group: Sequence[tuple[int, bytes]], checked: Sequence[_Checked]
    ) -> list[_Checked]:
        """Reserve the clients' own ids; a line whose id is taken is refused."""
        rids = [each[1].context.rids if isinstance(each, tuple) else () for each in checked]
        job_ids = [self._batch.job_id(number) for number, _ in group]
        refused: Sequence[str | None] = [None] * len(group)
        if any(rids) and self._rids is not None:
            refused = self._rids.take(list(zip(job_ids, rids, strict=True)))
        return [
            RefusedLine(each[0], APIError("invalid_value", _TAKEN.format(rid), "rid"))
            if rid is not None and isinstance(each, tuple)
            else each
            for each, rid in zip(checked, refused, strict=True)
        ]

    def _make_row(self, number: int, checked: _Checked, size: int) -> BatchLine | None:
        """Make the row of a line, or return None if it fails the file."""
        if isinstance(checked, RefusedLine):
            if self._batch.on_invalid == OnInvalid.SKIP:
                return self._refuse(number, checked)
            checked = checked.to_line_error()
        if isinstance(checked, tuple):
            custom_id, prepared = checked
            job, model = prepared.job_request, prepared.context.served_model
            if model not in self._by_model:
                self._by_model[model] = LinesOfModel(
                    model, self._cache_of(model), has_forecast=self._has_forecast
                )
            self._by_model[model].add(number, custom_id, job, size)
            self._schema.see(find_schema(prepared.request.constraint))
            self._batch.enqueued_tokens += sum(map(len, job.prompts))
            return BatchLine(
                batch=self._batch,
                number=number,
                custom_id=custom_id,
                model=model,
                position=number,
                job=lines.compress_job(job, prepared.context),
            )
        self.note(replace(checked, line=number))
        return None

    def _refuse(self, number: int, line: RefusedLine) -> BatchLine:
        self._batch.failed += 1
        self.invalid += 1
        request_id = f"req_{self._batch.job_id(number)}"
        result = lines.make_refused_result(request_id, line.error, self._batch.endpoint)
        self._summary.add(result)
        return BatchLine(
            batch=self._batch,
            number=number,
            custom_id=line.custom_id,
            state=LineState.FAILED,
            result=lines.compress_json(result),
        )

    def _require_unique(self, custom_id: str, number: int) -> None:
        digest = hashlib.blake2b(custom_id.encode(), digest_size=12).digest()
        first = self._seen.setdefault(digest, number)
        if first != number:
            message = f"custom_id: line {first} has the same one; each must be unique in the file."
            raise LineError("duplicate_custom_id", message, "custom_id")


def _begin(batch: Batch) -> None:
    """Start a valid batch. Raises LineError if its owner's batches would hold too many tokens, or
    if it would end late and is to be refused then.

    The count is exact, because the batches of an organization start one after another.
    """
    with lock_organization(batch.organization_id):
        owners = ApiKey.objects.select_related("organization")
        states.require_room(batch, owners.get(id=batch.api_key_id))
        _promise(batch)
        if not states.begin(batch, timezone.now()):
            raise _ClosedError


def _promise(batch: Batch) -> None:
    """Note the forecast of a batch whose lines are known, the promise it is held to. Raises
    LineError."""
    now = timezone.now()
    forecast = outlook.forecast_valid(batch, now)
    batch.promise = forecast and forecast.to_json(now)
    if forecast and batch.on_late == OnLate.REFUSE and not forecast.is_in_time:
        message = outlook.explain_late(forecast, batch.expires_at)
        raise LineError("window_too_short", message, "completion_window")


def _fail(batch: Batch, errors: list[dict[str, object]], log: IO[bytes]) -> None:
    """End the batch with its errors, all of which go to the error file."""
    ended_at = timezone.now()
    writing.store(batch, batch.error_file_id, log, ended_at)
    writing.delete_lines(batch)
    Batch.objects.filter(id=batch.id, status=BatchStatus.VALIDATING).update(
        status=BatchStatus.FAILED, errors=replace_nul(errors), total=0, ended_at=ended_at
    )
