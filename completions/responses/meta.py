"""The `meta` of responses, for clients that send `x-include-meta: 1`: how a request ran."""

from collections.abc import Sequence
from typing import Any

from completions.jobs.record import JobRecord
from completions.responses.completion import View

GRAMMAR_INCOMPLETE = "grammar_incomplete"
"""A constrained choice ended before its grammar did."""
MAX_TOKENS_DEFAULT = "max_tokens_default"
"""A choice ended at a length that the request did not ask for."""


def meta_of(
    view: View, finish_reasons: Sequence[str | None], job: JobRecord | None
) -> dict[str, Any]:
    """The object of contract 3.4. Times are null once Redis does not know the job."""
    return {
        **_times(job),
        "truncated_prompt_tokens": view.truncated_tokens,
        "grammar_compile_ms": view.grammar_compile_ms,
        "warnings": _warnings(view, finish_reasons),
    }


def _times(job: JobRecord | None) -> dict[str, Any]:
    if job is None:
        return dict.fromkeys(("queue_ms", "prefill_ms", "decode_ms", "worker"))
    return {
        "queue_ms": _between(job.created, job.started),
        "prefill_ms": _between(job.started, job.first),
        "decode_ms": _between(job.first, job.finished),
        "worker": job.worker or None,
    }


def _between(begin: float | None, end: float | None) -> float | None:
    """Milliseconds between two times."""
    return None if begin is None or end is None else max(0.0, round((end - begin) * 1000, 1))


def _warnings(view: View, finish_reasons: Sequence[str | None]) -> list[str]:
    if "length" not in finish_reasons:
        return []
    warnings = {GRAMMAR_INCOMPLETE: view.constrained, MAX_TOKENS_DEFAULT: view.default_length}
    return [warning for warning, applies in warnings.items() if applies]
