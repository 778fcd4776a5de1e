"""What to say about a path of the API at which there is nothing: which one the client meant."""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import Any

from django.urls import Resolver404, URLPattern, get_resolver, resolve

_LONGEST = 200
"""Characters of a path that is compared with others, or shown."""
_LISTED = "GET /v1/openapi.json lists every path."
_TEXT = "Quire generates text only."
_CHAT = "Use /v1/chat/completions."
_NOT_SERVED: Mapping[str, str] = {
    "audio": _TEXT,
    "images": _TEXT,
    "videos": _TEXT,
    "embeddings": _TEXT,
    "moderations": _TEXT,
    "rerank": _TEXT,
    "score": _TEXT,
    "realtime": _CHAT,
    "messages/batches": "Use /v1/batches.",
    "assistants": _CHAT,
    "threads": _CHAT,
    "edits": "Use /v1/completions.",
    "engines": "Use /v1/completions, with the engine as `model`.",
    "containers": "",
    "evals": "",
    "fine_tuning": "",
    "fine-tunes": "",
    "organization": "GET /v1/usage reports usage.",
    "vector_stores": "",
}
"""Routes of OpenAI, Anthropic and vLLM that Quire does not have, by their first segment, or two of
them, each with what to use instead."""


def describe(path: str) -> str:
    """Return the message for an unknown path below /v1/."""
    there_is_nothing = "There is nothing at this path."
    if fault := _find_fault(path):
        return f"{there_is_nothing} {fault}"
    first, *rest = path.removeprefix("/v1/").split("/")
    for service in (first, "/".join((first, *rest[:1]))):
        if (instead := _NOT_SERVED.get(service)) is None:
            continue
        return " ".join(part for part in (f"Quire does not serve /v1/{service}.", instead) if part)
    near = get_close_matches(path, _list_fixed_paths(), 1, 0.8) if len(path) <= _LONGEST else []
    return f"{there_is_nothing} {f'Did you mean {near[0]}? ' if near else ''}{_LISTED}"


def _find_fault(path: str) -> str:
    """Return what is wrong with the form of a path, if another form of it exists."""
    whole = re.sub("/{2,}", "/", path).rstrip("/")
    once = re.sub("^(/v1)+/", "/v1/", whole)
    if not _is_known(once):
        return ""
    if once != whole:
        return (
            f"The path begins with /v1 twice; it should be {once[:_LONGEST]}. Your client appends "
            "/v1 itself: give it a base URL without it."
        )
    slashes = "a slash at its end" if path.startswith(whole) else "two slashes in a row"
    return f"The path has {slashes}; it should be {whole[:_LONGEST]}."


def _is_known(path: str) -> bool:
    try:
        resolve(path)
    except Resolver404:
        return False
    return True


@cache
def _list_fixed_paths() -> tuple[str, ...]:
    """Return the paths below /v1/ that contain no id."""
    paths = (str(pattern.pattern) for pattern in _iter_patterns(get_resolver().url_patterns))
    return tuple(f"/{path}" for path in paths if path.startswith("v1/") and "<" not in path)


def _iter_patterns(entries: list[Any]) -> Iterator[URLPattern]:
    """Yield the API's patterns, which are included without a prefix."""
    for each in entries:
        if isinstance(each, URLPattern):
            yield each
        elif not str(each.pattern):
            yield from _iter_patterns(each.url_patterns)
