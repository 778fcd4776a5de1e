"""The `meta` of responses, for clients that send `x-include-meta: 1`: how a request ran."""

from collections.abc import Sequence

from completions.jobs.record import JobRecord
from completions.responses.choice_record import LENGTH, ChoiceRecord
from completions.responses.completion import ResponseContext

GRAMMAR_INCOMPLETE = "grammar_incomplete"
"""A constrained choice ended before its grammar did."""
MAX_TOKENS_DEFAULT = "max_tokens_default"
"""A choice ended at a length that the request did not ask for."""


def make_meta(
    context: ResponseContext, choices: Sequence[ChoiceRecord], job: JobRecord | None
) -> dict[str, object]:
    """Make the `meta` object. Times are null once Redis does not know the job."""
    return {
        **_make_times(job),
        "truncated_prompt_tokens": context.truncated_tokens,
        "grammar_compile_ms": context.grammar_compile_ms,
        "warnings": _make_warnings(context, choices),
    }


def _make_times(job: JobRecord | None) -> dict[str, object]:
    if job is None:
        return dict.fromkeys(("queue_ms", "prefill_ms", "decode_ms", "worker"))
    return {
        "queue_ms": _subtract(job.created, job.started),
        "prefill_ms": _subtract(job.started, job.first),
        "decode_ms": _subtract(job.first, job.finished),
        "worker": job.worker or None,
    }


def _subtract(begin: float | None, end: float | None) -> float | None:
    """Return the milliseconds between two times."""
    return None if begin is None or end is None else max(0.0, round((end - begin) * 1000, 1))


def _make_warnings(context: ResponseContext, choices: Sequence[ChoiceRecord]) -> list[str]:
    if LENGTH not in [choice.finish_reason for choice in choices]:
        return []
    is_cut = not context.closes or any(choice.is_cut for choice in choices)
    warnings = {
        GRAMMAR_INCOMPLETE: context.constrained and is_cut,
        MAX_TOKENS_DEFAULT: context.default_length,
    }
    return [warning for warning, applies in warnings.items() if applies]
