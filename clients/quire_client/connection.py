"""Settings and requests of httpx's clients."""

import os
from contextlib import suppress
from typing import TypedDict

import httpx

from quire_client.exchange import QuireError, Save, Send

DEFAULT_URL = "http://localhost:8000/v1"


class Settings(TypedDict):
    """The arguments that both of httpx's clients take."""

    base_url: httpx.URL
    headers: dict[str, str]
    timeout: httpx.Timeout


def read_settings(base_url: str | None, api_key: str | None) -> Settings:
    """Read the address and the key, by default from the environment. Raises QuireError."""
    key = (api_key or os.environ.get("QUIRE_API_KEY", "")).strip()
    if not key:
        raise QuireError("no API key: set QUIRE_API_KEY, or pass api_key")
    if not (key.isascii() and key.isprintable()):
        raise QuireError("the API key has characters that no key has; copy it again")
    return {
        "base_url": _parse_base_url(base_url or os.environ.get("QUIRE_BASE_URL") or DEFAULT_URL),
        "headers": {"Authorization": f"Bearer {key}"},
        "timeout": httpx.Timeout(60.0, write=300.0),
    }


def _parse_base_url(text: str) -> httpx.URL:
    with suppress(httpx.InvalidURL, UnicodeError):  # UnicodeError: a host that DNS cannot have
        url = httpx.URL(text.strip().rstrip("/"))
        has_host = bool(url.host.encode("idna"))
        has_port = url.port is None or 0 < url.port < 2**16
        if (
            url.scheme in ("http", "https")
            and has_host
            and has_port
            and not _has_more_than_path(url)
        ):
            return url
    raise QuireError(
        f"{text!r} is not a base URL; it is like https://quire.example.com/v1 or "
        "http://[::1]:8000/v1"
    )


def _has_more_than_path(url: httpx.URL) -> bool:
    """Return whether a URL has a query or a fragment, before which no path can be put."""
    return bool(url.query or url.fragment)


def make_request(client: httpx.Client | httpx.AsyncClient, step: Send | Save) -> httpx.Request:
    if isinstance(step, Save):
        size = step.target.stat().st_size if step.resumes and step.target.exists() else 0
        headers = {"Range": f"bytes={size}-"} if size else {}
        return client.build_request("GET", step.path, headers=headers)
    return client.build_request(
        step.method,
        step.path,
        json=step.body,
        data=step.data,
        files=[step.file] if step.file else None,
        headers=dict(step.headers),
    )


def choose_mode(response: httpx.Response) -> str:
    """Return the mode in which to open a download's file. A server may send the whole file again
    instead of the rest."""
    return "ab" if response.status_code == httpx.codes.PARTIAL_CONTENT else "wb"
