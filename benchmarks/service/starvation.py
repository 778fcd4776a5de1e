"""How long one organization's short calls wait while another one loads the service with one key.

    python -m benchmarks.service.starvation
    python -m benchmarks.service.starvation --only background

For each kind of load, organization A sends all of it, and B then sends calls of 4 tokens, one after
another. A's load is cancelled afterwards. The demo model, its clients and the service share the
machine.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx

from benchmarks import command_line
from benchmarks.service.installation import MODEL, Installation, installation

Body = dict[str, Any]
SETTLED = 8.0
"""Seconds until B begins, so that A has all slots."""


def body(max_tokens: int, **fields: Any) -> Body:
    return {
        "model": MODEL,
        "prompt": list(range(100, 130)),
        "max_tokens": max_tokens,
        "ignore_eos": True,
        **fields,
    }


LOADS: Mapping[str, tuple[int, Callable[[], Body]]] = {
    "600 calls of 150 tokens": (600, lambda: body(150)),
    "600 streams of 150": (600, lambda: body(150, stream=True)),
    "70 streams of 8,000": (70, lambda: body(8000, stream=True)),
    "66 background jobs of 8,000": (66, lambda: body(8000, background=True)),
    "a batch of 600 lines of 150": (600, lambda: body(150)),
}


async def post(client: httpx.AsyncClient, body: Body) -> None:
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        async for _ in answer.aiter_raw():
            pass


async def send_batch(client: httpx.AsyncClient, count: int, line: Body) -> str:
    """Start a batch. Returns its id."""
    whole = "\n".join(
        json.dumps({"custom_id": str(n), "method": "POST", "url": "/v1/completions", "body": line})
        for n in range(count)
    )
    file = {"file": ("in.jsonl", whole)}
    uploaded = await client.post("/v1/files", data={"purpose": "batch"}, files=file)
    fields = {"endpoint": "/v1/completions", "completion_window": "24h"}
    made = await client.post("/v1/batches", json={"input_file_id": uploaded.json()["id"], **fields})
    return str(made.raise_for_status().json()["id"])


async def measure(service: Installation, keys: Mapping[str, str], name: str, calls: int) -> None:
    count, make = LOADS[name]
    limits = httpx.Limits(max_connections=None)
    a, b = (
        httpx.AsyncClient(
            base_url=service.url,
            timeout=600,
            limits=limits,
            headers={"Authorization": f"Bearer {keys[organization]}"},
        )
        for organization in "AB"
    )
    async with a, b:
        batch = await send_batch(a, count, make()) if "batch" in name else ""
        sending = [] if batch else [asyncio.create_task(post(a, make())) for _ in range(count)]
        await asyncio.sleep(SETTLED)
        waits = []
        for _ in range(calls):
            began = time.perf_counter()
            answer = await b.post("/v1/completions", json=body(4))
            waits.append(time.perf_counter() - began)
            answer.raise_for_status()
        ended = sum(task.done() for task in sending)
        median = sorted(waits)[len(waits) // 2]
        print(
            f"| {name} | {waits[0]:.1f} | {median:.1f} | {max(waits):.1f} | {ended} |", flush=True
        )
        for task in sending:
            task.cancel()
        await asyncio.gather(*sending, return_exceptions=True)
        if batch:
            await a.post(f"/v1/batches/{batch}/cancel")
        listed = (await a.get("/v1/completions", params={"limit": 100})).json().get("data", [])
        for job in listed:
            await a.post(f"/v1/completions/{job['id']}/cancel")
        await asyncio.sleep(3)


def main() -> None:
    args = command_line.parser(__doc__, calls=10, only="").parse_args()
    print("| A's load | B's first call, s | median | longest | A's requests ended meanwhile |")
    print("|---|---|---|---|---|", flush=True)
    with installation({}, settings={"QUIRE_LOG_LEVEL": "WARNING"}) as service:
        keys = {name: service.new_key(name) for name in "AB"}
        for name in LOADS:
            if args.only in name:
                asyncio.run(measure(service, keys, name, args.calls))


if __name__ == "__main__":
    main()
