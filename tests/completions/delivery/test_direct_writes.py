"""Streams whose steps the reader of events writes to the connection, past the task that answers:
clients see the same bytes."""

import asyncio

import orjson
import pytest

from completions.delivery import streams
from completions.jobs.events import ChoiceEvent
from completions.jobs.execute import Ending, Output, StepEvent
from tests.completions.delivery.test_hang_ups import Connection
from tests.running import until

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]


@pytest.fixture
async def connection(live, owner):
    made = Connection(live, owner.secret)
    yield made
    for task in tuple(made.state.tasks):
        task.cancel()


@pytest.fixture
def written(monkeypatch):
    """What was written past the tasks."""
    write, steps = streams._write_step, []

    def note(*args):
        if is_written := write(*args):
            steps.append(args[-1])
        return is_written

    monkeypatch.setattr(streams, "_write_step", note)
    return steps


class Running:
    """A stream that runs: the test is its worker."""

    def __init__(self, live, claim):
        self._send = live.worker.execution.send
        self.claim = claim
        self.number = 1

    def show(self, text):
        choice = ChoiceEvent(0, [65], text)
        step = StepEvent(self.claim.job_id, self.claim.attempt, self.number, [choice])
        self.number += 1
        self._send(Output([step], (), [(self.claim.reader, step)]))

    def end(self):
        claim = self.claim
        end = Ending(claim.job_id, claim.attempt, self.number, "completed", None, None)
        self._send(Output((), [end]))


@pytest.fixture
async def running(live, connection, written):
    connection.send(stream=True, max_tokens=9)
    await connection.until_sent()
    return Running(live, await asyncio.to_thread(live.worker.claim, live.sent[0]))


def chunks(connection):
    """The whole chunks of HTTP that were written, as JSON."""
    _, _, rest = connection.transport.written.partition(b"\r\n\r\n")
    found = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        part, rest = rest[: int(size, 16)], rest[int(size, 16) + 2 :]
        frames = [frame.removeprefix(b"data: ") for frame in part.split(b"\n\n") if frame]
        found += [orjson.loads(frame) for frame in frames if frame != b"[DONE]"]
    return found


def texts(connection):
    return [chunk["choices"][0]["text"] for chunk in chunks(connection) if chunk.get("choices")]


async def test_steps_are_written_past_the_task(connection, running, written):
    for number, text in enumerate("abcd", 1):
        running.show(text)
        await until(lambda number=number: len(texts(connection)) == number)
    assert len(written) >= 3
    running.end()
    await until(lambda: b"[DONE]" in connection.transport.written)
    assert texts(connection) == list("abcd")
    found = chunks(connection)
    assert [chunk["sequence_number"] for chunk in found] == list(range(1, len(found) + 1))
    await connection.hang_up()


async def test_a_client_that_reads_slowly_gets_all_in_order(connection, running, written):
    running.show("a")
    await until(lambda: texts(connection) == ["a"])
    running.show("b")
    await until(lambda: texts(connection) == ["a", "b"])
    connection.protocol.pause_writing()
    written.clear()
    for text in "cde":
        running.show(text)
    await asyncio.sleep(0.1)
    assert written == []
    assert texts(connection) == ["a", "b"]
    connection.protocol.resume_writing()
    await until(lambda: len(texts(connection)) == 5)
    running.show("f")
    await until(lambda: texts(connection) == list("abcdef"))
    running.end()
    await until(lambda: b"[DONE]" in connection.transport.written)
    await connection.hang_up()


async def test_a_stream_ends_when_its_process_is_about_to(live, connection, running, monkeypatch):
    running.show("a")
    await until(lambda: texts(connection) == ["a"])
    monkeypatch.setattr(live.process, "is_closing", True)
    running.show("b")
    await until(lambda: b"server_shutting_down" in connection.transport.written)
    assert texts(connection)[:1] == ["a"]
    await connection.hang_up()
