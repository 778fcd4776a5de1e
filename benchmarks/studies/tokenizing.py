"""The gaps between a stream's events while another client sends long texts without pause.

    python -m benchmarks.studies.tokenizing
    python -m benchmarks.studies.tokenizing --real 1

One organization reads streams. Another one, in a process of its own, posts one kind of body again
and again on `--connections` connections: texts and messages to be tokenized, ids to be turned into
text, chats and text prompts. The web tier, queue and worker are real; the engine is a script with a
fixed step, or with `--real 1` the demo model. Each kind is measured between two runs without it.
"""

import asyncio
import multiprocessing
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from benchmarks import command_line
from benchmarks.service.installation import MODEL, Installation, Usage, installation
from benchmarks.service.streams import Caller, crowd, percentile
from benchmarks.web.bare_client import BareClient

CONTEXT = 8192
WARM_UP = 5
"""The events of a stream that do not count."""


class Body(NamedTuple):
    """What the second client sends."""

    path: str
    content: dict[str, Any]
    status: int = 200


def words(characters: int) -> str:
    """Draw letters, with a space after every few: most words are several tokens."""
    draw = random.Random(0)
    letters = [chr(draw.randrange(97, 123)) for _ in range(characters)]
    place = 0
    while (place := place + draw.randrange(2, 10)) < characters:
        letters[place] = " "
    return "".join(letters)


def bodies(characters: int) -> dict[str, Body]:
    """Return the bodies by the name of their kind."""
    text, fits = words(characters), words(CONTEXT)
    message = [{"role": "user", "content": text}]
    beyond = [{"role": "user", "content": text[: 30 * CONTEXT]}]
    ids = random.Random(1).choices(range(1000, 40_000), k=characters // 4)
    answer = {"max_tokens": 1, "ignore_eos": True}
    return {
        "tokenize a text": Body("/v1/tokenize", {"prompt": text}),
        "tokenize emoji": Body("/v1/tokenize", {"prompt": "\U0001f9ff" * (characters // 4)}),
        "tokenize messages": Body("/v1/tokenize", {"messages": message}),
        "detokenize": Body("/v1/detokenize", {"tokens": ids}),
        "chat beyond the context": Body(
            "/v1/chat/completions", {"messages": beyond, **answer}, 400
        ),
        "texts as prompts": Body("/v1/completions", {"prompt": [fits] * 64, **answer}),
    }


def _send(port: int, key: str, body: Body, connections: int, count: Any) -> None:
    """Post the body without pause until the process is terminated."""

    async def post() -> None:
        client = BareClient(port, key)
        while True:
            answer = await client.post(body.path, {"model": MODEL, **body.content})
            assert answer.startswith(b"HTTP/1.1 %d" % body.status), answer[:1000]
            with count.get_lock():
                count.value += 1

    async def run() -> None:
        await asyncio.gather(*(post() for _ in range(connections)))

    asyncio.run(run())


@contextmanager
def sending(service: Installation, key: str, body: Body, connections: int) -> Iterator[Any]:
    """Send a body without pause in a process of its own. Yields the number of answers so far."""
    context = multiprocessing.get_context("spawn")
    count = context.Value("i", 0)
    process = context.Process(target=_send, args=(service.port, key, body, connections, count))
    process.start()
    try:
        while count.value < connections:
            time.sleep(0.05)
        yield count
    finally:
        process.terminate()
        process.join()


def gaps(service: Installation, key: str, streams: int, tokens: int, scripted: bool) -> list[float]:
    """Return seconds between two events of a stream, of all streams."""
    caller = Caller(service.port, MODEL, tokens, scripted)
    seen = asyncio.run(crowd(caller, [("reader", key)] * streams))
    assert all(each.whole for each in seen), [(s.status, s.code, s.tokens) for s in seen]
    return [gap for each in seen for gap in each.gaps[WARM_UP:]]


def row(name: str, gaps: list[float], answers: str, cpu: float) -> str:
    shown = [f"{1000 * percentile(gaps, percent):.1f}" for percent in (50, 95, 99)]
    return f"| {name} | {' | '.join(shown)} | {1000 * max(gaps):.1f} | {answers} | {cpu:.2f} |"


def main() -> None:
    args = command_line.parser(
        __doc__, streams=4, tokens=600, step=0.016, connections=1, characters=1_000_000, real=0
    ).parse_args()
    print("| the other client | p50, ms | p95 | p99 | most | answers/s | web, cores |")
    print("|---|---|---|---|---|---|---|")
    entry = {"max_num_seqs": 64, "max_model_len": CONTEXT, "text_prompts": True}
    with installation(entry, None if args.real else args.step) as service:
        reader, sender = service.new_key("reader"), service.new_key("sender")
        options = reader, args.streams, args.tokens, not args.real
        gaps(service, *options)  # warms up
        for name, body in bodies(args.characters).items():
            began, cpu = time.monotonic(), Usage.of(service.pids["web"]).cpu
            quiet = gaps(service, *options)
            took = time.monotonic() - began
            print(row("none", quiet, "", (Usage.of(service.pids["web"]).cpu - cpu) / took))
            with sending(service, sender, body, args.connections) as count:
                before, began = count.value, time.monotonic()
                cpu = Usage.of(service.pids["web"]).cpu
                loaded = gaps(service, *options)
                took = time.monotonic() - began
                used = (Usage.of(service.pids["web"]).cpu - cpu) / took
            print(row(name, loaded, f"{(count.value - before) / took:.1f}", used), flush=True)


if __name__ == "__main__":
    main()
