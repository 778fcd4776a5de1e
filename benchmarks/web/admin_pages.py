"""The admin over a month of usage on SQLite: milliseconds per page, through HTTP.

    python -m benchmarks.web.admin_pages --requests 1000000

Makes the month with `example_data` in a folder that is deleted afterwards (--home keeps the folder,
and uses what is already in it), starts the web server and requests every page several times. Exits
1 if the median of a page is above --limit.
"""

import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from benchmarks import command_line
from benchmarks.service.installation import (
    ROOT,
    free_port,
    make_environment,
    running,
    wait_until_ready,
)

USER, PASSWORD = "benchmark", "only for this month"
PAGES = {
    "dashboard, 1 hour": "/admin/?period=1h",
    "dashboard, 24 hours": "/admin/?period=24h",
    "dashboard, 30 days": "/admin/?period=30d",
    "live jobs": "/admin/live/",
    "requests": "/admin/completions/usagerecord/",
    "requests, page 200": "/admin/completions/usagerecord/?p=200",
    "requests that failed": "/admin/completions/usagerecord/?status=failed",
    "requests of a model": "/admin/completions/usagerecord/?model=example-large",
    "requests of an organization": "/admin/completions/usagerecord/?organization__id__exact=1",
    "requests of a key": "/admin/completions/usagerecord/?api_key=2",
    "requests that failed with a code": (
        "/admin/completions/usagerecord/?status=failed&error_code=worker_error"
    ),
    "requests slower than 2 min": "/admin/completions/usagerecord/?slower=120",
    "usage by key": "/admin/usage/?by=key",
    "usage by batch": "/admin/usage/?by=batch&show=cost",
    "usage by key and hour": "/admin/usage/?by=key&per=hour",
    "usage as CSV": "/admin/usage.csv?by=key",
    "hourly usage": "/admin/completions/usagehour/",
    "requests, by an id": "/admin/completions/usagerecord/?q={request}",
    "search box": "/admin/search/?extended=1&s={request}",
    "a job": "/admin/jobs/{job}/",
    "batches": "/admin/completions/batch/",
    "a batch": "/admin/completions/batch/{batch}/change/",
    "files": "/admin/completions/file/",
    "workers": "/admin/workers/",
    "models": "/admin/models/",
    "API keys": "/admin/completions/apikey/",
    "a key": "/admin/completions/apikey/1/change/",
    "organizations": "/admin/completions/organization/",
    "an organization": "/admin/completions/organization/1/change/",
    "audit trail": "/admin/completions/auditentry/",
}


def main() -> None:
    parser = command_line.parser(__doc__, requests=1_000_000, rounds=7, limit=300.0)
    parser.add_argument("--home", type=Path, help="keep the database there, or use it")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as temporary:
        home = args.home or Path(temporary)
        with site(home, args.requests) as client:
            slow = measure(client, args.rounds, args.limit)
    sys.exit(1 if slow else 0)


@contextmanager
def site(home: Path, requests: int) -> Iterator[httpx.Client]:
    """Run the web server over a filled database. Yields a client that is logged in."""
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "models").exists():
        (home / "models").symlink_to(ROOT / "var" / "models")
    environment = make_environment(home, port := free_port()) | {
        "DJANGO_SUPERUSER_USERNAME": USER,
        "DJANGO_SUPERUSER_PASSWORD": PASSWORD,
        "DJANGO_SUPERUSER_EMAIL": "benchmark@example.org",
    }
    if not (home / "quire.sqlite3").exists():
        for command in (
            ["migrate", "-v0"],
            ["createsuperuser", "--noinput"],
            ["example_data", "--requests", str(requests)],
        ):
            manage = [sys.executable, "manage.py", *command]
            subprocess.run(manage, cwd=ROOT, env=environment, check=True)
    url = f"http://127.0.0.1:{port}"
    with (
        running(["manage.py", "up", "--only", "web"], environment) as up,
        httpx.Client(base_url=url, timeout=60, follow_redirects=True) as client,
    ):
        wait_until_ready(f"{url}/healthz", up)
        log_in(client)
        yield client


def log_in(client: httpx.Client) -> None:
    client.get("/admin/login/")
    form = {
        "username": USER,
        "password": PASSWORD,
        "csrfmiddlewaretoken": client.cookies["csrftoken"],
    }
    page = client.post("/admin/login/", data=form, headers={"Referer": str(client.base_url)})
    assert "Dashboard" in page.text, "could not log in"


def measure(client: httpx.Client, rounds: int, limit: float) -> list[str]:
    """Print a table. Returns the names of the pages that are too slow."""
    page = client.get("/admin/completions/usagerecord/").text
    job = re.findall(r"/admin/jobs/([^/]+)/", page)[0]
    request = re.findall(r"req_[0-9a-f]{32}", client.get(f"/admin/jobs/{job}/").text)[0]
    batches = client.get("/admin/completions/batch/").text
    batch = re.findall(r"/batch/(batch_[^/]+)/change/", batches)[0]
    slow = []
    print("| page | median ms | slowest ms |\n|---|---|---|")
    for name, path in PAGES.items():
        address = path.format(job=job, request=request, batch=batch)
        times = []
        for _ in range(rounds):
            started = time.perf_counter()
            client.get(address).raise_for_status()
            times.append(1000 * (time.perf_counter() - started))
        median = statistics.median(times)
        if median > limit:
            slow.append(name)
        print(f"| {name} | {median:.0f} | {max(times):.0f} |", flush=True)
    return slow


if __name__ == "__main__":
    main()
