"""The `meta` of responses, for clients that send `x-include-meta: 1`: how a request was run."""

from collections.abc import Sequence
from typing import Any

from completions.jobs.submission import Times
from completions.responses.completion import View

GRAMMAR_INCOMPLETE = "grammar_incomplete"
"""A constrained choice ended before its grammar did."""
MAX_TOKENS_DEFAULT = "max_tokens_default"
"""A choice ended at a length that the request did not ask for."""


def meta_of(
    view: View, finish_reasons: Sequence[str | None], times: Times | None
) -> dict[str, Any]:
    """The object of contract 3.4. Times are null where Redis does not know them any more."""
    return {
        **_times(times),
        "truncated_prompt_tokens": view.truncated_tokens,
        "grammar_compile_ms": view.grammar_compile_ms,
        "warnings": _warnings(view, finish_reasons),
    }


def _times(times: Times | None) -> dict[str, Any]:
    if times is None:
        return dict.fromkeys(("queue_ms", "prefill_ms", "decode_ms", "worker"))
    return {
        "queue_ms": _between(times.created, times.started),
        "prefill_ms": _between(times.started, times.first_event),
        "decode_ms": _between(times.first_event, times.finished),
        "worker": times.worker,
    }


def _between(begin: float | None, end: float | None) -> float | None:
    """Milliseconds; entries of a stream are dated by whole ones."""
    return None if begin is None or end is None else max(0.0, round((end - begin) * 1000, 1))


def _warnings(view: View, finish_reasons: Sequence[str | None]) -> list[str]:
    if "length" not in finish_reasons:
        return []
    told = {GRAMMAR_INCOMPLETE: view.constrained, MAX_TOKENS_DEFAULT: view.default_length}
    return [warning for warning, applies in told.items() if applies]
