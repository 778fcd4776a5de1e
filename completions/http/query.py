"""Query parameters that a route does not have are refused: a filter without effect returns what the
client meant to leave out."""

from collections.abc import Collection, Mapping
from difflib import get_close_matches
from types import MappingProxyType

from rest_framework.request import Request

from completions.exceptions import APIError

_SHOWN = 64
_OF_CLIENTS = ("api-version", "client_version")
"""Parameters that Azure's clients and Codex add to every request. They select nothing."""
_NONE: Mapping[str, str] = MappingProxyType({})


def refuse_unknown(
    request: Request,
    supported: Collection[str],
    arrays: Collection[str] = (),
    unsupported: Mapping[str, str] = _NONE,
) -> None:
    """Raise APIError for a parameter that is neither `supported` nor one of `arrays`, which may be
    written with `[]`. `unsupported` has those that only OpenAI's API has, each with what to do."""
    names = [*supported, *arrays]
    for name in request.query_params:
        plain = name.removesuffix("[]")
        if name in names or name in _OF_CLIENTS or plain in arrays:
            continue
        if plain in unsupported:
            message = f"{name}: not supported here. {unsupported[plain]}"
            raise APIError("unsupported_parameter", message, name)
        message = f"{name[:_SHOWN]}: there is no such query parameter. {_make_hint(name, names)}"
        raise APIError("unknown_parameter", message, name[:_SHOWN])


def _make_hint(name: str, names: Collection[str]) -> str:
    if not names:
        return "This route has none."
    near = get_close_matches(name, names, 1) if len(name) <= _SHOWN else []
    return f"Did you mean {near[0]}?" if near else f"This route has: {', '.join(names)}."
