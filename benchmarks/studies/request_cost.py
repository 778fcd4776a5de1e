"""What a completion without a stream costs each process: milliseconds of its processor time.

    python -m benchmarks.studies.request_cost [--requests 1500] [--concurrency 16] [--turns 3]

A scripted worker answers requests of 64 prompt tokens with 8 tokens, so that nothing but the
service is measured. The first requests warm up and are not counted. The background worker is read
when it has settled the last job.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx

from benchmarks import command_line
from benchmarks.service.installation import MODEL, Installation, installation
from benchmarks.web.bare_client import BareClient

_WARM_UP = 200
_SETTLED = b"quire_jobs_unsettled 0"
_PATIENCE = 120.0
_METRICS = {"Authorization": "Bearer benchmark"}


async def send(service: Installation, count: int, concurrency: int) -> None:
    """Send requests, `concurrency` of them at a time."""
    client, numbers = BareClient(service.port, service.key), iter(range(count))

    async def send_next(numbers: Iterator[int]) -> None:
        for number in numbers:
            body: dict[str, Any] = {
                "model": MODEL, "prompt": list(range(1, 65)), "max_tokens": 8, "seed": number,
            }  # fmt: skip
            answer = await client.post("/v1/completions", body)
            assert answer.startswith(b"HTTP/1.1 200 "), answer[:1000]

    await asyncio.gather(*(send_next(numbers) for _ in range(concurrency)))


def read_cpu(service: Installation) -> dict[str, float]:
    return {name: usage.cpu for name, usage in service.usage().items()}


def wait_until_settled(service: Installation) -> None:
    """Wait until the background worker has stored the ends of all jobs."""
    deadline = time.monotonic() + _PATIENCE
    while _SETTLED not in httpx.get(f"{service.url}/metrics", headers=_METRICS).content:
        if time.monotonic() > deadline:
            raise SystemExit("the background worker does not settle the jobs")
        time.sleep(0.1)


def main() -> None:
    args = command_line.parser(__doc__, requests=1500, concurrency=16, turns=3).parse_args()
    with installation({}, 0.002, settings={"QUIRE_METRICS_TOKEN": "benchmark"}) as service:
        asyncio.run(send(service, _WARM_UP, args.concurrency))
        wait_until_settled(service)
        for _ in range(args.turns):
            before = read_cpu(service)
            asyncio.run(send(service, args.requests, args.concurrency))
            wait_until_settled(service)
            spent = {name: cpu - before[name] for name, cpu in read_cpu(service).items()}
            print(*(f"{name} {1000 * s / args.requests:.2f} ms" for name, s in spent.items()))


if __name__ == "__main__":
    main()
