"""A real OpenID Connect provider, in a process and on a port of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import httpx

from tests.acceptance.service import free_port


class Provider:
    def __init__(self, url: str, process: "subprocess.Popen[bytes]") -> None:
        self.url = url
        self.process = process

    def put(self, subject: str, **claims: object) -> None:
        """Create a user, or replace its claims."""
        user = f"{self.url}/users/{quote(subject)}"
        httpx.put(user, json=claims, timeout=60).raise_for_status()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


@contextmanager
def running(folder: Path) -> Iterator[Provider]:
    port = free_port()
    with (folder / "provider.out").open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "oidc_provider_mock", "--port", str(port), "--require-nonce"],
            stdout=output,
            stderr=output,
            env={**os.environ, "NO_COLOR": "1"},
        )
    provider = Provider(f"http://localhost:{port}", process)
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                httpx.get(f"{provider.url}/.well-known/openid-configuration", timeout=60)
                break
            except httpx.TransportError:
                assert process.poll() is None, (folder / "provider.out").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)
        yield provider
    finally:
        provider.stop()
