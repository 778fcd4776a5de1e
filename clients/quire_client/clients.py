"""The two classes: the same verbs, blocking and as coroutines."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any, TypeVar

import httpx

from quire_client import batches, submission
from quire_client.connection import choose_mode, make_request, read_settings
from quire_client.exchange import Answer, Body, Pause, Save, Send, Step, Verb, request
from quire_client.progress import Report
from quire_client.rows import RowBatch
from quire_client.sessions import Sessions

_T = TypeVar("_T")


class Quire:
    """The commands as methods. Each raises QuireError for an answer that is an error."""

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(transport=transport, **read_settings(base_url, api_key))
        self.sessions = Sessions(self._run)

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
        return self._run(submission.submit_file(Path(file), str(self._http.base_url), options))

    def dry_run(self, file: str | Path, **options: Any) -> Body:
        """Upload a file and validate it. Returns the forecast of its tokens, cost and time."""
        return self._run(submission.forecast(Path(file), str(self._http.base_url), options))

    def watch(self, batch_id: str, report: Report | None = None) -> Body:
        """Wait until a batch has ended. Returns the batch object."""
        return self._run(batches.watch(batch_id, report))

    def fetch(self, batch_id: str, stem: str | Path) -> Sequence[Path]:
        """Write `STEM.output.jsonl` and `STEM.errors.jsonl`. Returns the files that the batch
        has."""
        return self._run(batches.fetch(batch_id, Path(stem)))

    def get(self, batch_id: str) -> Body:
        """Return the batch object."""
        return self._run(request("GET", f"/batches/{batch_id}"))

    def cancel(self, batch_id: str) -> Body:
        """Cancel a batch; its results so far are kept. Returns the batch object."""
        return self._run(request("POST", f"/batches/{batch_id}/cancel"))

    def list(self, limit: int = 20) -> Sequence[Body]:
        """Return the organization's newest batches."""
        return self._run(batches.list_newest(limit))

    def export(self, batch_id: str, target: str | Path) -> Path:
        """Write the results of an ended batch as rows to `FILE.jsonl`, `FILE.csv` or
        `FILE.parquet`."""
        return self._run(batches.export(batch_id, Path(target)))

    def watch_pilot(self, batch_id: str, report: Report | None = None) -> Body:
        """Wait until the pilot of a dry run has ended. Returns the batch object with its
        forecast."""
        return self._run(batches.watch(batch_id, report, batches.has_piloted))

    def start(self, batch_id: str) -> Body:
        """Run the lines that a dry run with `pilot=N` has not run."""
        return self._run(request("POST", f"/batches/{batch_id}/start"))

    def resubmit(self, batch_id: str) -> Body:
        """Make a batch of the lines in another batch's error file. Returns the new batch."""
        return self._run(batches.resubmit(batch_id))

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
        batch = RowBatch(list(rows), prompt, schema, body)
        self._run(batch.start())
        while not batch.has_ended:
            for file_id in self._run(batch.look()):
                yield from self._run(batch.read_file(file_id))
        batch.check()

    def _run(self, verb: Verb[_T]) -> _T:
        answer: Answer | None = None
        while True:
            try:
                step = verb.send(answer)
            except StopIteration as end:
                result: _T = end.value
                return result
            answer = self._request(step)

    def _request(self, step: Step) -> Answer | None:
        try:
            match step:
                case Pause():
                    time.sleep(step.seconds)
                case Send():
                    return self._http.send(make_request(self._http, step))
                case Save():
                    response = self._http.send(make_request(self._http, step), stream=True)
                    with closing(response):
                        if not response.is_success:
                            response.read()
                        else:
                            with step.target.open(choose_mode(response)) as file:
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
        self._http = httpx.AsyncClient(transport=transport, **read_settings(base_url, api_key))
        self.sessions = Sessions(self._run)

    async def __aenter__(self) -> "AsyncQuire":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def submit(self, file: str | Path, **options: Any) -> Body:
        url = str(self._http.base_url)
        return await self._run(submission.submit_file(Path(file), url, options))

    async def dry_run(self, file: str | Path, **options: Any) -> Body:
        return await self._run(submission.forecast(Path(file), str(self._http.base_url), options))

    async def watch(self, batch_id: str, report: Report | None = None) -> Body:
        return await self._run(batches.watch(batch_id, report))

    async def fetch(self, batch_id: str, stem: str | Path) -> Sequence[Path]:
        return await self._run(batches.fetch(batch_id, Path(stem)))

    async def get(self, batch_id: str) -> Body:
        return await self._run(request("GET", f"/batches/{batch_id}"))

    async def cancel(self, batch_id: str) -> Body:
        return await self._run(request("POST", f"/batches/{batch_id}/cancel"))

    async def list(self, limit: int = 20) -> Sequence[Body]:
        return await self._run(batches.list_newest(limit))

    async def export(self, batch_id: str, target: str | Path) -> Path:
        return await self._run(batches.export(batch_id, Path(target)))

    async def watch_pilot(self, batch_id: str, report: Report | None = None) -> Body:
        return await self._run(batches.watch(batch_id, report, batches.has_piloted))

    async def start(self, batch_id: str) -> Body:
        return await self._run(request("POST", f"/batches/{batch_id}/start"))

    async def resubmit(self, batch_id: str) -> Body:
        return await self._run(batches.resubmit(batch_id))

    async def map(
        self,
        rows: Iterable[Any],
        prompt: Callable[[Any], Any],
        schema: Body | None = None,
        **body: Any,
    ) -> AsyncIterator[tuple[Any, Any]]:
        batch = RowBatch(list(rows), prompt, schema, body)
        await self._run(batch.start())
        while not batch.has_ended:
            for file_id in await self._run(batch.look()):
                for pair in await self._run(batch.read_file(file_id)):
                    yield pair
        batch.check()

    async def _run(self, verb: Verb[_T]) -> _T:
        answer: Answer | None = None
        while True:
            try:
                step = verb.send(answer)
            except StopIteration as end:
                result: _T = end.value
                return result
            answer = await self._request(step)

    async def _request(self, step: Step) -> Answer | None:
        try:
            match step:
                case Pause():
                    await asyncio.sleep(step.seconds)
                case Send():
                    return await self._http.send(make_request(self._http, step))
                case Save():
                    response = await self._http.send(make_request(self._http, step), stream=True)
                    async with aclosing(response):
                        if not response.is_success:
                            await response.aread()
                        else:
                            with step.target.open(choose_mode(response)) as file:
                                async for chunk in response.aiter_bytes():
                                    file.write(chunk)
                    return response
        except httpx.TransportError as error:
            return error
        return None
