"""The engine's deltas and errors in the form of events."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from completions.jobs.events import ChoiceGain, JobError
from workers.engine.core.output import ChoiceDelta, TokenLogprobs
from workers.engine.exceptions import EngineError, GrammarError


def encode_choice(delta: ChoiceDelta) -> ChoiceGain:
    """Return a delta in the form of an event's choice."""
    return ChoiceGain(
        delta.index,
        delta.token_ids,
        delta.text,
        delta.finish_reason,
        delta.matched_stop,
        _encode_extras(delta) or None,
    )


def join_choices(gains: Sequence[ChoiceGain]) -> list[ChoiceGain]:
    """Join what each choice gained in several steps. A step with extras begins a new event, and log
    probabilities stay with their tokens."""
    joined: list[ChoiceGain] = []
    last: dict[int, int] = {}  # place of each choice's last event
    for gain in gains:
        at = last.get(gain.index)
        before = joined[at] if at is not None else None
        if at is None or before is None or gain.extras or "logprobs" in (before.extras or ()):
            last[gain.index] = len(joined)
            joined.append(gain)
            continue
        joined[at] = ChoiceGain(
            gain.index,
            [*before.token_ids, *gain.token_ids],
            before.text + gain.text,
            gain.finish_reason,
            gain.matched_stop,
            before.extras,
        )
    return joined


def _encode_extras(delta: ChoiceDelta) -> dict[str, Any]:
    """Return the parts of an event that few jobs ask for; ``completions.jobs.events`` describes
    them."""
    extras: dict[str, Any] = {}
    if delta.logprobs is not None:
        extras["logprobs"] = _encode_rows(delta.logprobs)
        extras["logprobs"]["offsets"] = delta.logprobs.offsets
        if delta.logprobs.forced:
            extras["logprobs"]["forced"] = delta.logprobs.forced
    if (scored := delta.prompt_logprobs) is not None:
        rest = _encode_rows(scored.rows(1, len(scored.chosen)))
        first = [None] if len(scored.chosen) else []
        extras["prompt_logprobs"] = {name: first + list(rows) for name, rows in rest.items()}
    if delta.cached_tokens:
        extras["cached_tokens"] = delta.cached_tokens
    if delta.hidden_states is not None:
        extras["hidden_states"] = delta.hidden_states
    if delta.routed_experts is not None:
        experts = delta.routed_experts.astype("<i4").tobytes()
        extras["routed_experts"] = b64encode(experts).decode()
    if delta.matched_stop_text is not None:
        extras["matched_stop_text"] = delta.matched_stop_text
    if delta.effect is not None:
        extras["constraint"] = asdict(delta.effect)
    return extras


def _encode_rows(scores: TokenLogprobs) -> dict[str, Any]:
    rows: dict[str, Any] = {"chosen": scores.chosen}
    if scores.top.shape[1]:
        rows |= {"top_ids": scores.top_ids, "top": scores.top}
    if scores.named.shape[1]:
        rows["named"] = scores.named
    return rows


def convert_error(error: EngineError, completion_tokens: int) -> JobError:
    """Return an engine's error in the form of events. A grammar that fails before the first token
    is invalid, although the web tier accepted it."""
    failed_at_once = isinstance(error, GrammarError) and not completion_tokens
    return JobError("invalid_grammar" if failed_at_once else error.code, str(error))
