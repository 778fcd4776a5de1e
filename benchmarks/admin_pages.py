"""The admin over a month of usage on SQLite: milliseconds per page, through HTTP.

    python -m benchmarks.admin_pages --requests 1000000

Makes the month with `example_data` in a folder that is deleted afterwards (--home keeps one, and
uses what is there), starts the web server and requests every page several times. Exits 1 if the
median of a page is above --limit.
"""

import argparse
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parent.parent
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
    "usage": "/admin/completions/usagehour/",
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
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=1_000_000, help="default 1000000")
    parser.add_argument("--rounds", type=int, default=7, help="default 7")
    parser.add_argument("--limit", type=float, default=300.0, help="ms, default 300")
    parser.add_argument("--home", type=Path, help="keep the database there, or use it")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as temporary:
        home = args.home or Path(temporary)
        with site(home, args.requests) as client:
            slow = measure(client, args.rounds, args.limit)
    sys.exit(1 if slow else 0)


@contextmanager
def site(home: Path, requests: int) -> Iterator[httpx.Client]:
    """The web server over a filled database; a client that is logged in."""
    home.mkdir(parents=True, exist_ok=True)
    if not (home / "models").exists():
        (home / "models").symlink_to(ROOT / "var" / "models")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    environment = {
        **{k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")},
        "QUIRE_HOME": str(home),
        "PORT": str(port),
        "DJANGO_SUPERUSER_USERNAME": USER,
        "DJANGO_SUPERUSER_PASSWORD": PASSWORD,
        "DJANGO_SUPERUSER_EMAIL": "benchmark@example.org",
    }
    manage = [sys.executable, "manage.py"]
    if not (home / "quire.sqlite3").exists():
        for command in (
            ["migrate", "-v0"],
            ["createsuperuser", "--noinput"],
            ["example_data", "--requests", str(requests)],
        ):
            subprocess.run([*manage, *command], cwd=ROOT, env=environment, check=True)
    up = subprocess.Popen(
        [*manage, "up", "--only", "web"], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL
    )
    try:
        with httpx.Client(base_url=url, timeout=60, follow_redirects=True) as client:
            log_in(client, up)
            yield client
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(60)


def log_in(client: httpx.Client, up: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and up.poll() is None:
        try:
            client.get("/healthz")
            break
        except httpx.HTTPError:
            time.sleep(0.2)
    client.get("/admin/login/")
    form = {
        "username": USER, "password": PASSWORD, "csrfmiddlewaretoken": client.cookies["csrftoken"],
    }  # fmt: skip
    page = client.post("/admin/login/", data=form, headers={"Referer": str(client.base_url)})
    assert "Dashboard" in page.text, "could not log in"


def measure(client: httpx.Client, rounds: int, limit: float) -> list[str]:
    """Print a table. Returns the names of the pages that are too slow."""
    found = client.get("/admin/completions/usagerecord/").text
    job = re.findall(r"/admin/jobs/([^/]+)/", found)[0]
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
