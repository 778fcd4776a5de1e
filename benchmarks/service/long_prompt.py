"""How long streams wait for a token while a long prompt of another client is computed.

    python -m benchmarks.service.long_prompt
    python -m benchmarks.service.long_prompt --limits 60,80,100,0 --repeats 3

Each limit of a step, QUIRE_STEP_MS, has an installation of its own with the demo model; 0 means
none. They take turns: streams run alone for some tokens, then a prompt arrives and gets one token,
then the streams are dropped. The gaps are those between the events that a client reads. Clients and
service share the machine.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import orjson

from benchmarks import command_line
from benchmarks.service.installation import MODEL, Installation, installation
from benchmarks.service.streams import percentile
from benchmarks.web.bare_client import BareClient

_WARM_UP = 20
"""Tokens of each stream before its gaps count."""
_LONGEST = 8000
"""Tokens after which a stream would end: more than any prompt takes steps."""


@dataclass
class Turns:
    """What the turns of one limit measured, in seconds."""

    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    prompts: list[float] = field(default_factory=list)

    def cells(self) -> list[str]:
        usual = percentile(self.alone, 50)
        gaps = [
            f"{1000 * percentile(gaps, percent):.0f}"
            for gaps in (self.alone, self.beside)
            for percent in (50, 99)
        ]
        ratio = percentile(self.beside, 99) / usual
        return [*gaps, f"{ratio:.1f}", f"{statistics.median(self.prompts):.1f}"]


class _Reader:
    """A stream and the times of its events."""

    def __init__(self, port: int, key: str, number: int) -> None:
        content = orjson.dumps(
            {
                "model": MODEL,
                "prompt": [7 + number] * 64,
                "max_tokens": _LONGEST,
                "ignore_eos": True,
                "seed": number,
                "stream": True,
            }
        )
        self._request = (
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nAuthorization: Bearer %b\r\nContent-Length: %d\r\n"
            b"\r\n%b" % (key.encode(), len(content), content)
        )
        self._port = port
        self.times: list[float] = []

    async def run(self) -> None:
        """Read until the task is cancelled, which ends the stream."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(self._request)
            async for line in reader:
                if line.startswith(b"data: {"):
                    self.times.append(time.monotonic())
        finally:
            writer.close()

    def gaps(self, start: float, end: float) -> list[float]:
        """Return the gaps that end between two times."""
        times = self.times
        return [b - a for a, b in pairwise(times) if start < b <= end]


async def take_turn(
    service: Installation, turns: Turns, streams: int, alone: int, prompt: Sequence[int]
) -> None:
    """Run streams alone, then beside a prompt."""
    readers = [_Reader(service.port, service.key, number) for number in range(streams)]
    tasks = [asyncio.create_task(reader.run()) for reader in readers]
    try:
        await _events(readers, tasks, _WARM_UP)
        began = time.monotonic()
        await _events(readers, tasks, _WARM_UP + alone)
        arrived = time.monotonic()
        answer = await BareClient(service.port, service.key).post(
            "/v1/completions", {"model": MODEL, "prompt": list(prompt), "max_tokens": 1}
        )
        done = time.monotonic()
        if not answer.startswith(b"HTTP/1.1 200 "):
            raise SystemExit(answer.decode())
        await _events(readers, tasks, max(len(reader.times) for reader in readers) + 1)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    turns.prompts.append(done - arrived)
    for reader in readers:
        turns.alone += reader.gaps(began, arrived)
        turns.beside += reader.gaps(arrived, done)


async def _events(
    readers: Sequence[_Reader], tasks: Sequence["asyncio.Task[None]"], count: int
) -> None:
    """Wait until each stream has had so many events. Raises SystemExit if one ends before."""
    while min(len(reader.times) for reader in readers) < count:
        if any(task.done() for task in tasks):
            raise SystemExit("a stream has ended early")
        await asyncio.sleep(0.005)


def main() -> None:
    parser = command_line.parser(
        __doc__, limits=[60, 80, 100, 0], streams=2, prompt_tokens=7000, alone=60, repeats=2
    )
    args = parser.parse_args()
    entry = {"max_model_len": 8192, "max_num_seqs": 8, "kv_cache_bytes": 2**29}
    quiet = {"QUIRE_LOG_LEVEL": "WARNING"}
    limits = {str(limit or "none"): str(limit or 1_000_000) for limit in args.limits}
    turns = {name: Turns() for name in limits}
    random = Random(1)
    with ExitStack() as stack:
        services = {
            name: stack.enter_context(installation(entry, settings={**quiet, "QUIRE_STEP_MS": ms}))
            for name, ms in limits.items()
        }
        for _ in range(args.repeats):
            prompt = [random.randrange(1000, 40_000) for _ in range(args.prompt_tokens)]
            for name, service in services.items():
                asyncio.run(take_turn(service, turns[name], args.streams, args.alone, prompt))
    print(f"{args.streams} streams; gaps in ms; a prompt of {args.prompt_tokens} tokens in s")
    columns = ("alone p50", "alone p99", "beside p50", "beside p99", "p99 / usual", "prompt s")
    command_line.print_columns("limit", *columns)
    for name, each in turns.items():
        command_line.print_columns(name, *each.cells())


if __name__ == "__main__":
    main()
