"""Validates a whole input file before its first line runs, with the checks of live requests."""

import asyncio
import hashlib
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import IO, Any

import orjson
from django.conf import settings
from django.db import transaction
from django.db.models import Sum
from django.utils import timezone

from completions.accounts import keys
from completions.accounts.keys import Principal
from completions.batches import lines, states, writing
from completions.batches.lines import PreparedLine
from completions.batches.writing import Alive
from completions.contract import strict_json
from completions.errors import APIError
from completions.jobs.rids import BatchRids
from completions.models import UNFINISHED, ApiKey, Batch, BatchLine, BatchStatus, File
from completions.models.parts import parts
from completions.models.storable import without_nul
from completions.requests import preparation

SHOWN_ERRORS = 100
"""Errors in the batch object. The error file has all of them."""
MAX_CUSTOM_ID = 512
"""Characters."""
LINES_AT_ONCE = 100
BYTES_AT_ONCE = 4 * 1024 * 1024
"""Limits of a group of lines, which is validated and stored together."""
CHECKED_AT_ONCE = 4
"""Lines of a group that are validated concurrently."""
PREFIX_BLOCK = 32
"""Tokens per block of a prompt prefix."""
PREFIX_BLOCKS = 16
"""Blocks of a prompt prefix that are compared."""
_TAKEN = (
    "body.rid: {} was already used by this API key. Use another; an id is reserved for 24 hours."
)
_KEYS = ("custom_id", "method", "url", "body")


class LineError(Exception):
    """An invalid line.

    `param` is the path of the invalid value. `line` is None if the file as a whole is invalid.
    """

    def __init__(
        self, code: str, message: str, param: str | None = None, line: int | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.param = param
        self.line = line

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("code", "message", "param", "line")}


_Checked = LineError | tuple[str, PreparedLine]
"""The error of a line, or its custom_id and its job."""


class InterruptedValidationError(Exception):
    """Another worker has taken over, and starts from the beginning."""


class _ClosedError(Exception):
    """The batch was cancelled or has expired."""


def validate(batch: Batch, alive: Alive, rids: BatchRids) -> None:
    """Validate and store every line, then start the batch, or fail it with all errors.

    Deletes first what an interrupted validation has stored. Raises InterruptedValidationError.
    """
    writing.delete_lines(batch)
    with asyncio.Runner() as loop, tempfile.TemporaryFile(dir=settings.FILE_UPLOAD_TEMP_DIR) as log:
        check = _Check(batch, loop, log, rids)
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


class _Check:
    """One pass over an input file."""

    def __init__(
        self,
        batch: Batch,
        loop: asyncio.Runner,
        log: IO[bytes],
        rids: BatchRids,
    ) -> None:
        self._batch = batch
        self._loop = loop
        self._log = log
        self._rids = rids
        self._principal = keys.principal_of(batch.api_key)
        self._seen: dict[bytes, int] = {}
        self.errors: list[dict[str, Any]] = []
        """The first errors. The log gets all of them."""

    def run(self, alive: Alive) -> None:
        """Validate all lines. Raises LineError if the file as a whole is invalid."""
        validating = Batch.objects.filter(id=self._batch.id, status=BatchStatus.VALIDATING)
        for group in _groups(self._lines()):
            if not alive():
                raise InterruptedValidationError
            if not validating.exists():
                raise _ClosedError
            checked = self._with_rids(group, self._loop.run(self._checked(group)))
            rows = (
                self._row(number, each) for (number, _), each in zip(group, checked, strict=True)
            )
            BatchLine.objects.bulk_create(row for row in rows if row is not None)
        if not self._batch.total and not self.errors:
            raise LineError("empty_file", "The file has no requests.")

    def note(self, error: LineError) -> None:
        self._log.write(orjson.dumps(error.as_dict()) + b"\n")
        if len(self.errors) < SHOWN_ERRORS:
            self.errors.append(error.as_dict())

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield number and text of every line that is not blank. Raises LineError."""
        file = File.objects.filter(id=self._batch.input_file_id).first()
        if file is None:
            raise LineError("file_not_found", "The input file was deleted or has expired.")
        most = settings.MAX_BODY_BYTES
        with file.content.open("rb") as content:
            number = 0
            while text := content.readline(most + 1):
                number += 1
                if len(text) > most:
                    raise LineError(
                        "line_too_long",
                        f"The line is longer than {most} bytes. Shorten it.",
                        line=number,
                    )
                if not text.strip():
                    continue
                self._batch.total += 1
                if self._batch.total > settings.MAX_BATCH_LINES:
                    message = (
                        f"The file has more than {settings.MAX_BATCH_LINES} requests. Split it."
                    )
                    raise LineError("too_many_tasks", message)
                yield number, text

    async def _checked(self, group: Sequence[tuple[int, bytes]]) -> list[_Checked]:
        turns = asyncio.Semaphore(CHECKED_AT_ONCE)
        return await asyncio.gather(*(self._prepared(turns, *numbered) for numbered in group))

    async def _prepared(self, turns: asyncio.Semaphore, number: int, text: bytes) -> _Checked:
        try:
            request = _parse(text, self._batch.endpoint)
            self._require_unique(request["custom_id"], number)
            where = self._batch.endpoint, self._batch.job_id(number)
            async with turns:
                prepared = await prepare_line(*where, request["body"], self._principal)
        except LineError as error:
            return error
        return request["custom_id"], prepared

    def _with_rids(
        self, group: Sequence[tuple[int, bytes]], checked: Sequence[_Checked]
    ) -> list[_Checked]:
        """Reserve the clients' own ids; lines with an id that is taken become errors."""
        lines = [
            (self._batch.job_id(number), [] if isinstance(each, LineError) else _rids_of(each[1]))
            for (number, _), each in zip(group, checked, strict=True)
        ]
        refused = self._rids.take(lines) if any(rids for _, rids in lines) else [None] * len(lines)
        return [
            each if rid is None else LineError("invalid_value", _TAKEN.format(rid), "body.rid")
            for each, rid in zip(checked, refused, strict=True)
        ]

    def _row(self, number: int, checked: _Checked) -> BatchLine | None:
        if not isinstance(checked, LineError):
            custom_id, prepared = checked
            self._batch.model = self._batch.model or prepared.model
            if prepared.model == self._batch.model:
                self._batch.enqueued_tokens += sum(map(len, prepared.request["prompts"]))
                return BatchLine(
                    batch=self._batch,
                    number=number,
                    custom_id=custom_id,
                    prefix=prefix_key(prepared.request["prompts"][0]),
                    job=lines.pack({"view": prepared.view, "request": prepared.request}),
                )
            checked = LineError(
                "model_mismatch",
                f"body.model: lines before this one ask for {self._batch.model!r}; a file has one "
                "model.",
                "body.model",
            )
        self.note(LineError(checked.code, checked.message, checked.param, number))
        return None

    def _require_unique(self, custom_id: str, number: int) -> None:
        digest = hashlib.blake2b(custom_id.encode(), digest_size=12).digest()
        first = self._seen.setdefault(digest, number)
        if first != number:
            message = f"custom_id: line {first} has the same one; each must be unique in the file."
            raise LineError("duplicate_custom_id", message, "custom_id")


async def prepare_line(endpoint: str, job_id: str, body: Any, principal: Principal) -> PreparedLine:
    """Prepare a line's job. Raises LineError if the line is invalid, APIError on server errors."""
    try:
        prepared = await preparation.prepare(endpoint, body, principal, job_id)
    except APIError as error:
        if error.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise
        param = f"body.{error.param}" if error.param else "body"
        raise LineError(error.code, error.message, param) from error
    for name in ("stream", "background"):
        if getattr(prepared.request.returns, name):
            message = f"{name}: a line of a batch is neither streamed nor polled; leave it out."
            raise LineError("invalid_request", message, f"body.{name}")
    view = prepared.view
    return PreparedLine(view.served_model, view.as_dict(), prepared.payload)


def _begin(batch: Batch) -> None:
    """Start a valid batch. Raises LineError if its owner's batches would hold too many tokens.

    The count is exact, because a row lock starts the batches of a key one after another.
    """
    with transaction.atomic():
        owners = ApiKey.objects.select_for_update().select_related("organization")
        _require_room(batch, owners.get(id=batch.api_key_id))
        if not states.begin(batch, timezone.now()):
            raise _ClosedError


def _require_room(batch: Batch, key: ApiKey) -> None:
    """Check max_enqueued_tokens of the key and its organization. Raises LineError."""
    unended = Batch.objects.filter(status__in=UNFINISHED).exclude(id=batch.id)
    for owner, batches in (
        (key, unended.filter(api_key_id=key.pk)),
        (key.organization, unended.filter(organization_id=key.organization_id)),
    ):
        most = owner.max_enqueued_tokens
        if most is None:
            continue
        enqueued = batches.aggregate(tokens=Sum("enqueued_tokens"))["tokens"] or 0
        if enqueued + batch.enqueued_tokens > most:
            whose = "this API key" if owner is key else "your organization"
            raise LineError(
                "token_limit_exceeded",
                f"Enqueued token limit reached: the prompts of {whose}'s batches may hold {most} "
                f"tokens until they have ended; there are {enqueued}, and this file has "
                f"{batch.enqueued_tokens}. Try again once some of them have ended.",
            )


def _rids_of(prepared: PreparedLine) -> list[str]:
    rid = prepared.view.get("rid")
    return [rid] if isinstance(rid, str) else list(rid or ())


def _groups(found: Iterator[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """Group lines, within LINES_AT_ONCE and BYTES_AT_ONCE."""
    for group in parts(found, LINES_AT_ONCE):
        while group:
            size, count = 0, 0
            while count < len(group) and (size < BYTES_AT_ONCE or not count):
                size += len(group[count][1])
                count += 1
            yield group[:count]
            group = group[count:]


def _parse(text: bytes, endpoint: str) -> dict[str, Any]:
    """Parse a line and check its keys. Raises LineError."""
    try:
        request = strict_json.loads(text.decode("utf-8-sig").strip())
    except UnicodeDecodeError as error:
        raise LineError("invalid_json_line", f"Not UTF-8 (byte {error.start}).") from error
    except strict_json.StrictJSONError as error:
        raise LineError("invalid_json_line", f"Not valid JSON: {error}.") from error
    if not isinstance(request, dict):
        raise LineError("invalid_json_line", "It must be a JSON object.")
    for name in request:
        if name not in _KEYS:
            message = f"{name[:64]}: there is no such key; a line has {', '.join(_KEYS)}."
            raise LineError("unknown_parameter", message, name[:64])
    for name in _KEYS:
        if request.get(name) is None:
            raise LineError("missing_required_parameter", f"{name}: this key is required.", name)
    _check_values(request, endpoint)
    return request


def _check_values(request: dict[str, Any], endpoint: str) -> None:
    custom_id = request["custom_id"]
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= MAX_CUSTOM_ID:
        message = f"custom_id: must be a string of 1-{MAX_CUSTOM_ID} characters."
        raise LineError("invalid_value", message, "custom_id")
    if "\x00" in custom_id:
        raise LineError("invalid_value", "custom_id: must not hold U+0000.", "custom_id")
    if request["method"] != "POST":
        raise LineError("invalid_value", 'method: must be "POST".', "method")
    if request["url"] != endpoint:
        message = f"url: must be {endpoint!r}, the endpoint of the batch."
        raise LineError("url_mismatch", message, "url")
    if not isinstance(request["body"], dict):
        raise LineError("invalid_type", "body: must be an object.", "body")


def prefix_key(prompt: Sequence[int]) -> str:
    """Return a key that sorts prompts with a common prefix next to each other.

    It has a 16-bit hash per whole block of the prompt's first 512 tokens.
    """
    key = []
    for start in range(0, min(len(prompt), PREFIX_BLOCK * PREFIX_BLOCKS), PREFIX_BLOCK):
        block = array("I", prompt[start : start + PREFIX_BLOCK])
        if len(block) == PREFIX_BLOCK:
            key.append(hashlib.blake2b(block.tobytes(), digest_size=2).hexdigest())
    return "".join(key)


def _fail(batch: Batch, errors: list[dict[str, Any]], log: IO[bytes]) -> None:
    """End the batch with its errors, all of which go to the error file."""
    writing.store(batch, batch.error_file_id, log)
    writing.delete_lines(batch)
    Batch.objects.filter(id=batch.id, status=BatchStatus.VALIDATING).update(
        status=BatchStatus.FAILED, errors=without_nul(errors), total=0, ended_at=timezone.now()
    )
