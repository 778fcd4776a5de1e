"""Batches of a Quire service, from another machine.

    pip install ./clients
    export QUIRE_BASE_URL=https://quire.example.com/v1 QUIRE_API_KEY=sk-...
    quire submit lines.jsonl --wait

In Python, `Quire` has the commands as methods, `AsyncQuire` has them as coroutines, and `map` runs
one prompt over many rows. Anything interrupted resumes where it stopped: an upload at its next
part, a wait with the same batch, a download at its next byte.

A verb is a generator of steps, so that both classes share it: it yields what to send, and receives
the answer.
"""

import argparse
import asyncio
import hashlib
import json
import os
import sys
import time
import uuid
from collections.abc import (
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx

__all__ = ["AsyncQuire", "Progress", "Quire", "QuireError", "main"]

DEFAULT_URL = "http://localhost:8000/v1"
CHAT = "/v1/chat/completions"
ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
PART_BYTES = 8 * 1024 * 1024
TRIES = 6
"""Tries of one request when the connection breaks or the server is overloaded."""
LONGEST_PAUSE = 30.0
LOOK_EVERY = 2.0
SAY_EVERY = 10.0
"""Seconds between two lines of progress if the output is not a terminal."""
_RETRIED = frozenset({408, 409, 429, 500, 502, 503, 504})

Body = dict[str, Any]
_T = TypeVar("_T")


class QuireError(Exception):
    """An answer that is an error. `status` is 0 if the server did not answer."""

    def __init__(self, message: str, status: int = 0, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code = status, code

    @classmethod
    def from_response(cls, response: httpx.Response) -> "QuireError":
        try:
            error = response.json()["error"]
            return cls(str(error["message"]), response.status_code, error.get("code"))
        except (ValueError, KeyError, TypeError):
            return cls(response.text[:200] or response.reason_phrase, response.status_code)


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a batch."""

    status: str
    total: int
    completed: int
    failed: int
    lines_per_second: float | None
    seconds_left: float | None
    cost: float | None
    """The cost so far, by the prices of the model; None if it has none."""

    @property
    def share(self) -> float:
        return (self.completed + self.failed) / self.total if self.total else 0.0

    def __str__(self) -> str:
        done = self.completed + self.failed
        words = [f"{done}/{self.total} lines" if self.total else self.status]
        if self.failed:
            words.append(f"{self.failed} failed")
        if self.lines_per_second:
            words.append(f"{self.lines_per_second:.1f}/s")
        if self.seconds_left is not None:
            words.append(f"{_format_duration(self.seconds_left)} left")
        if self.cost is not None:
            words.append(f"cost {self.cost:.2f}")
        return ", ".join(words)


Report = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class _Send:
    """Send a request. Its answer is the response, or httpx's TransportError."""

    method: str
    path: str
    body: Body | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    data: Mapping[str, str] | None = None
    file: tuple[str, tuple[str, bytes]] | None = None
    """The field, the name and the content of a multipart file."""


@dataclass(frozen=True, slots=True)
class _Save:
    """Download a file to `target`; with `resumes`, only the rest if `target` has its beginning. The
    answer is that of `_Send`."""

    path: str
    target: Path
    resumes: bool


@dataclass(frozen=True, slots=True)
class _Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class _Item:
    """A result of `map`."""

    value: Any


_Step = _Send | _Save | _Pause | _Item
_Verb = Generator[_Step, Any, _T]


# Verbs -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Note:
    """A record of what `submit` has done with a file, kept in another file beside it: first
    `upload` and `parts`, then `file`, then `batches` by their options."""

    path: Path
    values: Body

    @classmethod
    def for_file(cls, file: Path, url: str) -> "_Note":
        """Return the note about the same content on the same server, or a new one."""
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        same = {"url": url, "sha256": digest}
        path = file.with_name(f"{file.name}.quire")
        try:
            values = json.loads(path.read_text())
        except (OSError, ValueError):
            values = {}
        if {name: values.get(name) for name in same} != same:
            values = {**same, "parts": [], "batches": {}}
        return cls(path, values)

    def keep(self, **values: Any) -> None:
        self.values.update(values)
        part = self.path.with_name(f"{self.path.name}.new")
        part.write_text(json.dumps(self.values))
        part.replace(self.path)


def _upload(file: Path, note: _Note) -> _Verb[str]:
    """Upload a file, if it is not uploaded yet. Returns its id."""
    if file_id := note.values.get("file"):
        return str(file_id)
    size = file.stat().st_size
    if size <= PART_BYTES:
        answer = yield from _send(
            "POST",
            "/files",
            data={"purpose": "batch"},
            file=("file", (file.name[:255], file.read_bytes())),
        )
        note.keep(file=answer["id"])
        return str(answer["id"])
    try:
        stored = yield from _upload_in_parts(file, size, note)
    except QuireError as error:
        if error.code not in ("upload_not_found", "upload_not_pending"):
            raise
        stored = None
    if stored is None:  # the upload or its file has expired: begin again
        note.keep(upload=None, parts=[])
        stored = yield from _upload_in_parts(file, size, note)
        if stored is None:
            raise QuireError(f"the service deleted the upload of {file} at once")
    note.keep(file=stored)
    return stored


def _upload_in_parts(file: Path, size: int, note: _Note) -> _Verb[str | None]:
    """Send the parts that are missing. Returns the file's id; None if the file was deleted since
    an earlier client completed the upload."""
    if not note.values.get("upload"):
        begun = yield from _send(
            "POST",
            "/uploads",
            {
                "filename": file.name[:255],
                "purpose": "batch",
                "bytes": size,
                "mime_type": "application/jsonl",
            },
        )
        note.keep(upload=begun["id"], parts=[], part_bytes=PART_BYTES)
    path, parts = f"/uploads/{note.values['upload']}", list(note.values["parts"])
    part_bytes = note.values["part_bytes"]  # an older client's parts may have another size
    with file.open("rb") as content:
        content.seek(len(parts) * part_bytes)
        while piece := content.read(part_bytes):
            part = yield from _send("POST", f"{path}/parts", file=("data", ("part", piece)))
            parts.append(part["id"])
            note.keep(parts=parts)
    done = yield from _send("POST", f"{path}/complete", {"part_ids": parts})
    return str(done["file"]["id"]) if done["file"] else None


def _submit_file(file: Path, url: str, options: Body) -> _Verb[Body]:
    """Submit a file. Returns its batch, the same one if it was submitted before."""
    options = {"endpoint": _read_first_url(file), "completion_window": "24h", **options}
    note = _Note.for_file(file, url)
    batches, name = note.values["batches"], json.dumps(options, sort_keys=True)
    entry = batches.setdefault(name, {"key": str(uuid.uuid4())})
    if "id" in entry:
        try:
            current: Body = yield from _send("GET", f"/batches/{entry['id']}")
            return current
        except QuireError as error:
            if error.code != "batch_not_found":
                raise
            raise QuireError(
                f"{file} was submitted as {entry['id']}, which this key cannot see: use the key "
                f"that submitted it, or delete {note.path} to run all lines again",
                error.status,
                error.code,
            ) from error
    batch = yield from _create(file, note, options, {"Idempotency-Key": entry["key"]})
    entry["id"] = batch["id"]
    note.keep()
    return batch


def _rehearse(file: Path, url: str, options: Body) -> _Verb[Body]:
    """Return the forecast of a file, or with a pilot its batch. A later submission uses the same
    upload."""
    options = {
        "endpoint": _read_first_url(file),
        "completion_window": "24h",
        "dry_run": True,
        **options,
    }
    if options.get("pilot") is not None:  # its lines must not run twice
        return (yield from _submit_file(file, url, options))
    return (yield from _create(file, _Note.for_file(file, url), options, {}))


def _create(file: Path, note: _Note, options: Body, headers: Mapping[str, str]) -> _Verb[Body]:
    """Upload a file, if it is not uploaded yet, and make a batch of it. Returns the answer."""
    try:
        return (yield from _post(file, note, options, headers))
    except QuireError as error:
        if error.code != "file_not_found":
            raise
    note.keep(file=None, upload=None, parts=[])  # it expired, or was deleted: upload it again
    return (yield from _post(file, note, options, headers))


def _post(file: Path, note: _Note, options: Body, headers: Mapping[str, str]) -> _Verb[Body]:
    file_id = yield from _upload(file, note)
    note.keep()  # the idempotency key, before it is used
    body = {"input_file_id": file_id, **options}
    return (yield from _send("POST", "/batches", body, headers=headers))


def _watch(batch_id: str, report: Report | None) -> _Verb[Body]:
    """Wait until a batch has ended. Returns it."""
    prices: Body | None = None
    while True:
        batch: Body = yield from _send("GET", f"/batches/{batch_id}")
        if report is not None:
            if prices is None and batch.get("model"):
                prices = yield from _load_prices(batch["model"])
            report(_make_progress(batch, prices))
        if batch["status"] in ENDED:
            return batch
        yield _Pause(LOOK_EVERY)


def _load_prices(model: str) -> _Verb[Body | None]:
    """Return the prices of a model; none if the key may not see it, or it is no longer served. None
    if the service failed: the next look asks again."""
    try:
        answer = yield from _send("GET", f"/models/{model}")
    except QuireError as error:
        return {} if error.status in (403, 404) else None
    return answer.get("prices_per_million_tokens") or {}


def _fetch(batch_id: str, stem: Path) -> _Verb[list[Path]]:
    """Write the output and the errors to `STEM.output.jsonl` and `STEM.errors.jsonl`."""
    batch, paths = (yield from _send("GET", f"/batches/{batch_id}")), []
    for name, kind in (("output_file_id", "output"), ("error_file_id", "errors")):
        if file_id := batch.get(name):
            target = stem.with_name(f"{stem.name}.{kind}.jsonl")
            # What a running batch has so far is not the beginning of the file at its end.
            is_final = batch["status"] in ENDED
            part = target.with_name(f".{target.name}.{file_id}{'' if is_final else '.so-far'}")
            yield from _retry(_Save(f"/files/{file_id}/content", part, is_final))
            part.replace(target)
            paths.append(target)
    return paths


def _resubmit(batch_id: str) -> _Verb[Body]:
    """Make a batch of another one's failed lines: a single one, also if an answer is lost."""
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    return (yield from _send("POST", f"/batches/{batch_id}/resubmit", headers=headers))


def _map(
    rows: Sequence[Any], prompt: Callable[[Any], Any], schema: Body | None, body: Body
) -> _Verb[None]:
    """Yield `(row, answer)` for each row as it finishes; the answer may be a QuireError."""
    if not rows:  # a file without requests is refused
        return
    lines = [_make_line(number, prompt(row), schema, body) for number, row in enumerate(rows)]
    content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    sent = yield from _send(
        "POST", "/files", data={"purpose": "batch"}, file=("file", ("rows.jsonl", content))
    )
    batch = yield from _send(
        "POST",
        "/batches",
        {"input_file_id": sent["id"], "endpoint": CHAT},
        headers={"Idempotency-Key": str(uuid.uuid4())},
    )
    seen: set[str] = set()
    while True:
        batch = yield from _send("GET", f"/batches/{batch['id']}")
        counts = batch["request_counts"]
        ended = batch["status"] in ENDED
        # A read fetches all lines again, so the next one waits until there are a quarter more.
        if ended or counts["completed"] + counts["failed"] > len(seen) * 1.25:
            for name in ("output_file_id", "error_file_id"):
                for line in (yield from _read_lines(batch[name])):
                    if line["custom_id"] not in seen:
                        seen.add(line["custom_id"])
                        yield _Item((rows[int(line["custom_id"])], _parse_answer(line, schema)))
        if ended:
            break
        yield _Pause(LOOK_EVERY)
    if batch["status"] == "failed":
        faults = (batch.get("errors") or {}).get("data") or [{}]
        raise QuireError(f"{batch['id']} failed: {faults[0].get('message')}")


def _read_lines(file_id: str | None) -> _Verb[list[Body]]:
    """Return the lines that a file has now."""
    if file_id is None:
        return []
    answer = yield from _retry(_Send("GET", f"/files/{file_id}/content"))
    return [json.loads(line) for line in answer.content.split(b"\n") if line]


def _make_line(number: int, prompt: Any, schema: Body | None, body: Body) -> Body:
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    request = {"messages": messages, **body}
    if schema is not None:
        request["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema},
        }
    return {"custom_id": str(number), "method": "POST", "url": CHAT, "body": request}


def _parse_answer(line: Body, schema: Body | None) -> Any:
    """Return the text of a line's answer, or with a schema its JSON value, or a QuireError."""
    response = line.get("response") or {}
    failure = line.get("error") or (response.get("body") or {}).get("error")
    if failure:
        return QuireError(
            str(failure.get("message")), response.get("status_code") or 0, failure.get("code")
        )
    (choice, *_) = response["body"]["choices"]
    text = choice["message"]["content"]
    if schema is None:
        return text
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return QuireError(f"the answer ended with {choice['finish_reason']}: {text}")


def _make_progress(batch: Body, prices: Body | None) -> Progress:
    counts, now = batch["request_counts"], batch.get("progress") or {}
    cost = None
    if prices:
        usage = batch["usage"]
        cached = usage["input_tokens_details"]["cached_tokens"]
        cost = (
            (usage["input_tokens"] - cached) * prices["prompt"]
            + cached * prices["cached_prompt"]
            + usage["output_tokens"] * prices["completion"]
        ) / 1_000_000
    return Progress(
        batch["status"],
        counts["total"],
        counts["completed"],
        counts["failed"],
        now.get("lines_per_second"),
        now.get("seconds_left"),
        cost,
    )


def _read_first_url(file: Path) -> str:
    """Return the url of the first line that is not blank, or a default. The server explains what
    is wrong with such a line."""
    with (
        # Only a line feed ends a line: for JSON, a carriage return is a space.
        file.open(encoding="utf-8-sig", newline="\n") as lines,
        suppress(ValueError, KeyError, TypeError, StopIteration, RecursionError),
    ):
        return str(json.loads(next(line for line in lines if line.strip()))["url"])
    return "/v1/completions"


# Sending -----------------------------------------------------------------------------------------


def _send(
    method: str,
    path: str,
    body: Body | None = None,
    headers: Mapping[str, str] | None = None,
    **multipart: Any,
) -> _Verb[Body]:
    """Return the JSON body of the answer."""
    step = _Send(method, path, body, headers or {}, **multipart)
    answer: Body = (yield from _retry(step)).json()
    return answer


def _retry(step: _Step) -> _Verb[httpx.Response]:
    """Return a successful response, after retries if necessary. Raises QuireError."""
    for attempt in range(TRIES):
        answer: httpx.Response | httpx.TransportError = yield step
        if isinstance(answer, httpx.Response) and (answer.is_success or answer.status_code == 416):
            return answer
        pause = _compute_pause(attempt, answer)
        if pause is None:
            break
        yield _Pause(pause)
    if isinstance(answer, httpx.Response):
        raise QuireError.from_response(answer)
    raise QuireError(f"the service does not answer: {answer!r}") from answer


def _compute_pause(attempt: int, answer: httpx.Response | httpx.TransportError) -> float | None:
    """Return seconds to wait before the next try; None if there is none."""
    if attempt + 1 >= TRIES:
        return None
    if isinstance(answer, httpx.Response):
        if answer.status_code not in _RETRIED or answer.headers.get("x-should-retry") == "false":
            return None
        with suppress(KeyError, ValueError):
            seconds = float(answer.headers["retry-after"])
            if seconds >= 0:  # nan is not
                return min(seconds, LONGEST_PAUSE)
    return min(0.5 * 2.0**attempt, LONGEST_PAUSE)


def _read_settings(base_url: str | None, api_key: str | None) -> dict[str, Any]:
    """Return the arguments that both of httpx's clients take."""
    key = (api_key or os.environ.get("QUIRE_API_KEY", "")).strip()
    if not key:
        raise QuireError("no API key: set QUIRE_API_KEY, or pass api_key")
    if not (key.isascii() and key.isprintable()):
        raise QuireError("the API key has characters that no key has; copy it again")
    return {
        "base_url": _parse_base_url(base_url or os.environ.get("QUIRE_BASE_URL") or DEFAULT_URL),
        "headers": {"Authorization": f"Bearer {key}"},
        "timeout": httpx.Timeout(60.0, write=300.0),
    }


def _parse_base_url(text: str) -> httpx.URL:
    with suppress(httpx.InvalidURL, UnicodeError):  # UnicodeError: a host that DNS cannot have
        url = httpx.URL(text.strip().rstrip("/"))
        has_host = bool(url.host.encode("idna"))
        has_port = url.port is None or 0 < url.port < 2**16
        if (
            url.scheme in ("http", "https")
            and has_host
            and has_port
            and not _has_more_than_path(url)
        ):
            return url
    raise QuireError(
        f"{text!r} is not a base URL; it is like https://quire.example.com/v1 or "
        "http://[::1]:8000/v1"
    )


def _has_more_than_path(url: httpx.URL) -> bool:
    """Return whether a URL has a query or a fragment, before which no path can be put."""
    return bool(url.query or url.fragment)


def _make_request(client: httpx.Client | httpx.AsyncClient, step: _Send | _Save) -> httpx.Request:
    if isinstance(step, _Save):
        size = step.target.stat().st_size if step.resumes and step.target.exists() else 0
        headers = {"Range": f"bytes={size}-"} if size else {}
        return client.build_request("GET", step.path, headers=headers)
    return client.build_request(
        step.method,
        step.path,
        json=step.body,
        data=step.data,
        files=[step.file] if step.file else None,
        headers=dict(step.headers),
    )


def _choose_mode(response: httpx.Response) -> str:
    """Return the mode in which to open a download's file. A server may send the whole file again
    instead of the rest."""
    return "ab" if response.status_code == httpx.codes.PARTIAL_CONTENT else "wb"


class Quire:
    """The commands as methods. Each raises QuireError for an answer that is an error."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(transport=transport, **_read_settings(base_url, api_key))

    def __enter__(self) -> "Quire":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def submit(self, file: str | Path, **options: Any) -> Body:
        """Upload a file and make a batch of it. Returns the batch object.

        `options` are fields of `POST /v1/batches`. By default, `endpoint` is the url of the first
        line and `completion_window` is 24h.
        """
        return self._run(_submit_file(Path(file), str(self._http.base_url), options))

    def dry_run(self, file: str | Path, **options: Any) -> Body:
        """Upload a file and validate it. Returns the forecast of its tokens, cost and time."""
        return self._run(_rehearse(Path(file), str(self._http.base_url), options))

    def watch(self, batch_id: str, report: Report | None = None) -> Body:
        """Wait until a batch has ended. Returns the batch object."""
        return self._run(_watch(batch_id, report))

    def fetch(self, batch_id: str, stem: str | Path) -> list[Path]:
        """Write `STEM.output.jsonl` and `STEM.errors.jsonl`. Returns the files that the batch
        has."""
        return self._run(_fetch(batch_id, Path(stem)))

    def get(self, batch_id: str) -> Body:
        return self._run(_send("GET", f"/batches/{batch_id}"))

    def cancel(self, batch_id: str) -> Body:
        return self._run(_send("POST", f"/batches/{batch_id}/cancel"))

    def start(self, batch_id: str) -> Body:
        """Run the lines that a dry run with `pilot=N` has not run."""
        return self._run(_send("POST", f"/batches/{batch_id}/start"))

    def resubmit(self, batch_id: str) -> Body:
        """Make a batch of the lines in another batch's error file. Returns the new batch."""
        return self._run(_resubmit(batch_id))

    def map(
        self,
        rows: Iterable[Any],
        prompt: Callable[[Any], Any],
        schema: Body | None = None,
        **body: Any,
    ) -> Iterator[tuple[Any, Any]]:
        """Run one prompt over many rows as a batch. Yields `(row, answer)` as rows finish.

        `prompt` turns a row into a text or a list of messages. The answer is a text, or with
        `schema` the JSON value, or a QuireError for a row that failed. `body` has more fields of a
        chat completion.
        """
        verb, answer = _map(list(rows), prompt, schema, body), None
        with suppress(StopIteration):
            while True:
                step = verb.send(answer)
                answer = None
                if isinstance(step, _Item):
                    yield step.value
                else:
                    answer = self._do(step)

    def _run(self, verb: _Verb[_T]) -> _T:
        answer: Any = None
        while True:
            try:
                step = verb.send(answer)
            except StopIteration as end:
                result: _T = end.value
                return result
            answer = self._do(step)

    def _do(self, step: _Step) -> Any:
        try:
            match step:
                case _Pause():
                    time.sleep(step.seconds)
                case _Send():
                    return self._http.send(_make_request(self._http, step))
                case _Save():
                    response = self._http.send(_make_request(self._http, step), stream=True)
                    with closing(response):
                        if not response.is_success:
                            response.read()
                        else:
                            with step.target.open(_choose_mode(response)) as file:
                                for chunk in response.iter_bytes():
                                    file.write(chunk)
                    return response
        except httpx.TransportError as error:
            return error
        return None


class AsyncQuire:
    """Like `Quire`, with coroutines."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = httpx.AsyncClient(transport=transport, **_read_settings(base_url, api_key))

    async def __aenter__(self) -> "AsyncQuire":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def submit(self, file: str | Path, **options: Any) -> Body:
        return await self._run(_submit_file(Path(file), str(self._http.base_url), options))

    async def dry_run(self, file: str | Path, **options: Any) -> Body:
        return await self._run(_rehearse(Path(file), str(self._http.base_url), options))

    async def watch(self, batch_id: str, report: Report | None = None) -> Body:
        return await self._run(_watch(batch_id, report))

    async def fetch(self, batch_id: str, stem: str | Path) -> list[Path]:
        return await self._run(_fetch(batch_id, Path(stem)))

    async def get(self, batch_id: str) -> Body:
        return await self._run(_send("GET", f"/batches/{batch_id}"))

    async def cancel(self, batch_id: str) -> Body:
        return await self._run(_send("POST", f"/batches/{batch_id}/cancel"))

    async def start(self, batch_id: str) -> Body:
        return await self._run(_send("POST", f"/batches/{batch_id}/start"))

    async def resubmit(self, batch_id: str) -> Body:
        return await self._run(_resubmit(batch_id))

    async def map(
        self,
        rows: Iterable[Any],
        prompt: Callable[[Any], Any],
        schema: Body | None = None,
        **body: Any,
    ) -> AsyncIterator[tuple[Any, Any]]:
        verb, answer = _map(list(rows), prompt, schema, body), None
        with suppress(StopIteration):
            while True:
                step = verb.send(answer)
                answer = None
                if isinstance(step, _Item):
                    yield step.value
                else:
                    answer = await self._do(step)

    async def _run(self, verb: _Verb[_T]) -> _T:
        answer: Any = None
        while True:
            try:
                step = verb.send(answer)
            except StopIteration as end:
                result: _T = end.value
                return result
            answer = await self._do(step)

    async def _do(self, step: _Step) -> Any:
        try:
            match step:
                case _Pause():
                    await asyncio.sleep(step.seconds)
                case _Send():
                    return await self._http.send(_make_request(self._http, step))
                case _Save():
                    response = await self._http.send(_make_request(self._http, step), stream=True)
                    async with aclosing(response):
                        if not response.is_success:
                            await response.aread()
                        else:
                            with step.target.open(_choose_mode(response)) as file:
                                async for chunk in response.aiter_bytes():
                                    file.write(chunk)
                    return response
        except httpx.TransportError as error:
            return error
        return None


# The command -------------------------------------------------------------------------------------


def _format_duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}" if hours else f"{minutes}m{rest:02}" if minutes else f"{rest}s"


class _Bar:
    """Shows progress on standard error: a bar on a terminal, otherwise a line every ten seconds."""

    WIDTH = 30

    def __init__(self) -> None:
        self._said = 0.0
        self._drawn = False

    def __call__(self, progress: Progress) -> None:
        if sys.stderr.isatty():
            full = round(progress.share * self.WIDTH)
            bar = "#" * full + "." * (self.WIDTH - full)
            print(f"\r\x1b[K[{bar}] {progress}", end="", file=sys.stderr, flush=True)
            self._drawn = True
        elif time.monotonic() - self._said >= SAY_EVERY or progress.status in ENDED:
            self._said = time.monotonic()
            print(progress, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._drawn:
            print(file=sys.stderr)


def _wait(quire: Quire, batch_id: str) -> Body:
    bar = _Bar()
    try:
        return quire.watch(batch_id, bar)
    finally:
        bar.end()


def _deliver(quire: Quire, batch: Body, stem: Path) -> int:
    """Write the results. Returns the exit code: 1 unless the batch completed."""
    for path in quire.fetch(batch["id"], stem):
        print(path)
    for fault in (batch.get("errors") or {}).get("data") or []:
        print(f"line {fault.get('line')}: {fault.get('message')}", file=sys.stderr)
    if batch["status"] != "completed":
        print(f"{batch['id']} is {batch['status']}", file=sys.stderr)
        return 1
    return 0


def _require_file(file: Path) -> Path:
    if not file.is_file():
        raise QuireError(f"{file} is not a file")
    return file


def _submit(quire: Quire, options: argparse.Namespace) -> int:
    file = _require_file(options.file)
    batch = quire.submit(file, **_make_fields(options))
    if not options.wait:
        print(batch["id"])
        return 0
    print(f"{file} is {batch['id']}", file=sys.stderr)
    code = _deliver(quire, _wait(quire, batch["id"]), file.with_suffix(""))
    file.with_name(f"{file.name}.quire").unlink(missing_ok=True)
    return code


def _make_fields(options: argparse.Namespace) -> Body:
    """Return the fields of a batch that the command line sets."""
    fields = {
        "endpoint": options.endpoint,
        "completion_window": options.window,
        "on_invalid": options.on_invalid,
        "receipts": options.receipts or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "quire",
        description="Batches of a Quire service, from another machine.",
        epilog="Environment: QUIRE_BASE_URL (default http://localhost:8000/v1), QUIRE_API_KEY.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    submit = verbs.add_parser("submit", help="upload a file of requests and run it as a batch")
    submit.add_argument("--wait", action="store_true", help="show progress, write the results")
    rehearse = verbs.add_parser(
        "dry-run", help="validate a file, and print a forecast of its tokens, cost and time"
    )
    for each in (submit, rehearse):
        each.add_argument("file", type=Path)
        each.add_argument("--endpoint", help="default: the url of the first line")
        each.add_argument("--window", default="24h", help="1h to 168h; default: 24h")
        each.add_argument("--on-invalid", choices=("skip", "fail"), default="skip")
        each.add_argument("--receipts", action="store_true", help="one for each answered line")
    fetch = verbs.add_parser("fetch", help="write the results of a batch")
    fetch.add_argument("batch")
    fetch.add_argument("--to", type=Path, metavar="STEM", help="default: the batch's id")
    for verb, what in (
        ("watch", "show the progress of a batch until it has ended"),
        ("cancel", "cancel a batch; its results so far are kept"),
        ("resubmit", "run the failed lines of a batch again; prints the new batch's id"),
    ):
        verbs.add_parser(verb, help=what).add_argument("batch")
    return parser


def _run(quire: Quire, options: argparse.Namespace) -> int:
    match options.verb:
        case "submit":
            return _submit(quire, options)
        case "dry-run":
            forecast = quire.dry_run(_require_file(options.file), **_make_fields(options))
            print(json.dumps(forecast, indent=2))
            return 0 if forecast["would_run"] else 1
        case "fetch":
            return _deliver(quire, quire.get(options.batch), options.to or Path(options.batch))
        case "watch":
            return 0 if _wait(quire, options.batch)["status"] == "completed" else 1
        case "cancel":
            print(quire.cancel(options.batch)["status"])
        case _:
            print(quire.resubmit(options.batch)["id"])
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    options = _make_parser().parse_args(argv)
    try:
        with Quire() as quire:
            code = _run(quire, options)
            sys.stdout.flush()
            return code
    except QuireError as error:
        print(f"quire: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 1
    except KeyboardInterrupt:
        print("\nquire: run the same command again to continue", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
