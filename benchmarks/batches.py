"""Batches around a scripted engine: memory, cost per line, and what live requests notice.

    python -m benchmarks.batches --lines 1000,10000

A whole installation on embedded servers whose engine worker is `benchmarks.scripted_worker`: all
that is measured is the service's own. For each size: seconds from the upload to the output
file, CPU time per line of every process, the growth of its memory while the batch ran, and the
median latency of a live request beside the batch against the same request before it.
"""

import argparse
import json
import statistics
import sys
import time
from typing import Any

import httpx

from benchmarks.installation import DEMO_MODEL, Installation, installation

MODEL = "scripted"
TOKENS = 16
LIVE_EVERY = 0.2


def live(client: httpx.Client) -> float:
    """Seconds of one synchronous request."""
    began = time.perf_counter()
    body = {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": TOKENS}
    client.post("/v1/completions", json=body).raise_for_status()
    return time.perf_counter() - began


def submit(client: httpx.Client, count: int) -> str:
    """A batch of `count` lines of 64 prompt tokens; its id."""
    lines = (
        json.dumps(
            {
                "custom_id": f"r{number}",
                "method": "POST",
                "url": "/v1/completions",
                "body": {
                    "model": MODEL,
                    "prompt": [(number * 7 + k) % 40_000 for k in range(64)],
                    "max_tokens": TOKENS,
                },
            }
        )
        for number in range(count)
    )
    upload = {"file": ("in.jsonl", "\n".join(lines).encode())}
    file = client.post("/v1/files", files=upload, data={"purpose": "batch"}).raise_for_status()
    body = {"input_file_id": file.json()["id"], "endpoint": "/v1/completions"}
    batch = client.post("/v1/batches", json=body).raise_for_status()
    return str(batch.json()["id"])


def measure(client: httpx.Client, service: Installation, count: int) -> dict[str, Any]:
    """One batch from upload to output, with live requests beside it."""
    idle = [live(client) for _ in range(10)]
    before = service.usage()
    most = {name: usage.memory for name, usage in before.items()}
    began = time.perf_counter()
    batch_id = submit(client, count)
    beside = []
    while True:
        batch = client.get(f"/v1/batches/{batch_id}").json()
        if batch["status"] not in ("validating", "in_progress", "finalizing"):
            break
        if batch["status"] == "in_progress":
            beside.append(live(client))
        for name, usage in service.usage().items():
            most[name] = max(most[name], usage.memory)
        time.sleep(LIVE_EVERY)
    seconds = time.perf_counter() - began
    assert batch["status"] == "completed", batch
    assert batch["request_counts"]["completed"] == count
    cpu = {name: usage.cpu - before[name].cpu for name, usage in service.usage().items()}
    return {
        "lines": count,
        "seconds": seconds,
        "cpu_ms_per_line": {name: 1000 * spent / count for name, spent in cpu.items()},
        "growth_mib": {name: (most[name] - before[name].memory) / 2**20 for name in most},
        "live_idle_ms": 1000 * statistics.median(idle),
        "live_beside_ms": 1000 * statistics.median(beside) if beside else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lines", default="1000,10000", help="sizes, by commas")
    parser.add_argument("--step", type=float, default=0.005, help="seconds of an engine step")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    args = parser.parse_args()
    models = f'[models.{MODEL}]\npath = "{DEMO_MODEL}"\nmax_num_seqs = 64\n'
    worker = ["-m", "benchmarks.scripted_worker", "--model", MODEL, "--step", str(args.step)]
    with (
        installation(models, worker) as service,
        httpx.Client(base_url=service.url, headers=service.headers, timeout=120) as client,
    ):
        measure(client, service, 200)  # warms everything up
        rows = [measure(client, service, int(count)) for count in args.lines.split(",")]
    if args.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    for row in rows:
        cpu, growth = row["cpu_ms_per_line"], row["growth_mib"]
        sys.stdout.write(
            f"{row['lines']} lines in {row['seconds']:.1f} s, "
            f"{row['lines'] / row['seconds']:.0f}/s; live request {row['live_idle_ms']:.0f} ms "
            f"idle, {row['live_beside_ms'] or 0:.0f} ms beside\n"
        )
        for name in cpu:
            sys.stdout.write(
                f"  {name:>10}  {cpu[name]:6.2f} ms CPU per line  {growth[name]:+7.1f} MiB\n"
            )


if __name__ == "__main__":
    main()
