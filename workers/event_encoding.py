"""The engine's deltas and errors in the form of events."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, cast

from completions.jobs.events import ChoiceEvent, Extras, JobError
from workers.engine.core.output import ChoiceDelta, TokenLogprobs
from workers.engine.exceptions import EngineError, GrammarError


def encode_choice(delta: ChoiceDelta, build: str | None = None) -> ChoiceEvent:
    """Return a delta in the form of an event's choice. The last one names the engine's build."""
    extras = _encode_extras(delta)
    if build is not None and delta.finish_reason is not None:
        extras["engine"] = build
    return ChoiceEvent(
        delta.index,
        delta.token_ids,
        delta.text,
        delta.finish_reason,
        delta.matched_stop,
        extras,
    )


def join_choices(gains: Sequence[ChoiceEvent]) -> list[ChoiceEvent]:
    """Join what each choice gained in several steps. A step with extras other than `forced` begins
    a new event, and log probabilities stay with their tokens."""
    joined: list[ChoiceEvent] = []
    last: dict[int, int] = {}  # place of each choice's last event
    for gain in gains:
        at = last.get(gain.index)
        before = joined[at] if at is not None else None
        if at is None or before is None or _stands_alone(before, gain):
            last[gain.index] = len(joined)
            joined.append(gain)
            continue
        joined[at] = ChoiceEvent(
            gain.index,
            [*before.token_ids, *gain.token_ids],
            before.text + gain.text,
            gain.finish_reason,
            gain.matched_stop,
            _join_forced(before, gain),
        )
    return joined


def _stands_alone(before: ChoiceEvent, gain: ChoiceEvent) -> bool:
    """Return whether a gain cannot become a part of the event before it."""
    return not {"forced"}.issuperset(gain.extras) or "logprobs" in before.extras


def _join_forced(before: ChoiceEvent, gain: ChoiceEvent) -> Extras:
    """Return the extras of two gains, of which the later one has no others than `forced`."""
    if not gain.extras:
        return before.extras
    moved = [len(before.token_ids) + place for place in gain.extras["forced"]]
    return {**before.extras, "forced": [*before.extras.get("forced", ()), *moved]}


def _encode_extras(delta: ChoiceDelta) -> Extras:
    """Return the parts of an event that few jobs ask for; ``completions.jobs.events`` describes
    them."""
    extras: dict[str, object] = {
        "forced": delta.forced or None,
        "cached_tokens": delta.cached_tokens or None,
        "hidden_states": delta.hidden_states,
        "matched_stop_text": delta.matched_stop_text,
        "num_allowed": delta.num_allowed,
        "constraint": delta.effect and asdict(delta.effect),
        "limit_ending": delta.limit_ending and asdict(delta.limit_ending),
    }
    if delta.logprobs is not None:
        extras["logprobs"] = _encode_output_rows(delta.logprobs)
    if (scored := delta.prompt_logprobs) is not None:
        rest = _encode_rows(scored.rows(1, len(scored.chosen)))
        first = [None] if len(scored.chosen) else []
        extras["prompt_logprobs"] = {name: first + list(rows) for name, rows in rest.items()}
    if delta.routed_experts is not None:
        experts = delta.routed_experts.astype("<i4").tobytes()
        extras["routed_experts"] = b64encode(experts).decode()
    present = {name: value for name, value in extras.items() if value is not None}
    return cast(Extras, present)  # arrays of numpy stand for the lists that they are written as


def _encode_output_rows(scores: TokenLogprobs) -> dict[str, Any]:
    rows = _encode_rows(scores) | {"offsets": scores.offsets}
    if scores.forced:
        rows["forced"] = scores.forced
    if scores.support:
        counts, masses, ids = zip(*scores.support, strict=True)
        rows |= {"counts": counts, "log_mass": masses, "support_ids": ids}
    return rows


def _encode_rows(scores: TokenLogprobs) -> dict[str, Any]:
    rows: dict[str, Any] = {"chosen": scores.chosen}
    if scores.top.shape[1]:
        rows |= {"top_ids": scores.top_ids, "top": scores.top}
    if scores.named.shape[1]:
        rows["named"] = scores.named
    if len(scores.ranks):
        rows["ranks"] = scores.ranks
    return rows


def convert_error(error: EngineError, completion_tokens: int) -> JobError:
    """Return an engine's error in the form of events. A grammar that fails before the first token
    is invalid, although the web tier accepted it."""
    failed_at_once = isinstance(error, GrammarError) and not completion_tokens
    return JobError("invalid_grammar" if failed_at_once else error.code, str(error))
