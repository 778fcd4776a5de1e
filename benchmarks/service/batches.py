"""Batches around a scripted engine: memory, cost per line, and the effect on live requests.

    python -m benchmarks.service.batches --lines 1000,10000

A whole installation on embedded servers has a scripted engine worker, so that the figures are the
service's own. Reports for each size: seconds from the upload to the output file; for every process,
CPU time per line and the growth of memory; and the median latency of a live request before the
batch and beside it.
"""

import json
import statistics
import time

import httpx

from benchmarks import command_line
from benchmarks.service.installation import MODEL, Installation, installation

TOKENS = 16
LIVE_EVERY = 0.2


def live(client: httpx.Client) -> float:
    """Send one synchronous request. Returns its seconds."""
    began = time.perf_counter()
    body = {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": TOKENS}
    client.post("/v1/completions", json=body).raise_for_status()
    return time.perf_counter() - began


def submit(client: httpx.Client, count: int) -> str:
    """Submit a batch of `count` lines of 64 prompt tokens. Returns its id."""
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


def measure(client: httpx.Client, service: Installation, count: int) -> str:
    """Report one batch from upload to output, with live requests beside it."""
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
    report = (
        f"{count} lines in {seconds:.1f} s, {count / seconds:.0f}/s; live request "
        f"{1000 * statistics.median(idle):.0f} ms idle, "
        f"{1000 * statistics.median(beside or [0]):.0f} ms beside"
    )
    for name, usage in service.usage().items():
        cpu = 1000 * (usage.cpu - before[name].cpu) / count
        growth = (most[name] - before[name].memory) / 2**20
        report += f"\n  {name:>10}  {cpu:6.2f} ms CPU per line  {growth:+7.1f} MiB"
    return report


def main() -> None:
    args = command_line.parser(__doc__, lines=[1000, 10_000], step=0.005).parse_args()
    with (
        installation({"max_num_seqs": 64}, args.step) as service,
        httpx.Client(base_url=service.url, headers=service.headers, timeout=120) as client,
    ):
        measure(client, service, 200)  # warms everything up
        for count in args.lines:
            print(measure(client, service, count), flush=True)


if __name__ == "__main__":
    main()
