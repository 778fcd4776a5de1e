"""What a job's stream carries: one event per engine step, then exactly one terminal event.

An event is one JSON object in the stream field `d`. Keys are short because there is one per step:

    {"s": 7, "c": [[choice, [token ids], "text", finish_reason, matched_stop, {extras}], ...]}
    {"s": 9, "end": "completed" | "failed" | "cancelled", "error": {...}, "usage": {...}}

`s` is the sequence number of the first choice in it; the k-th has s + k. Sequence numbers are the
resume cursors of the API, start at 1 and have no gap.

The extras are left out where there are none. Each but the last two is there only if the job
asked for it:

    logprobs         {"chosen": [n], "offsets": [n], "top_ids": [n][k], "top": [n][k],
                     "named": [n][m]}, natural logarithms for the n token ids of the event: of
                     the token itself, of the k likeliest in its place, of the m ids of
                     token_ids_logprob. An offset is the number of characters of the choice's
                     decoded text before the token.
    prompt_logprobs  the same without offsets, for the prompt from logprob_start_len on; the
                     first row of each is null. In the first event of a prompt's first choice
                     only, which comes before those of its other choices.
    hidden_states    with the last event: [hidden]
    routed_experts   with the last event: base64 of little-endian int32 [positions, layers, top_k]
    cached_tokens    with the first event: tokens of the choice's prompt that were in the cache
    matched_stop_text  what the stop regex `matched_stop` matched

`top_ids` and `top` are left out if k is 0, `named` if m is 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

EndState = Literal["completed", "failed", "cancelled"]


@dataclass(slots=True)
class ChoiceEvent:
    """What one choice gained in one step. Nobody changes it; frozen, it would take twice as long to
    make, and streams are made of them."""

    sequence_number: int
    index: int
    token_ids: list[int]
    text: str
    finish_reason: str | None
    matched_stop: int | str | None
    extras: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobError:
    """Why a job failed: a stable code, and a message that tells the client what to do."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a whole job; prompt tokens count once per prompt, not per choice."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    forced_tokens: int = 0
    """Of the completion tokens: a grammar left no choice."""


@dataclass(frozen=True, slots=True)
class EndEvent:
    """The last event of every job."""

    sequence_number: int
    state: EndState
    error: JobError | None
    usage: Usage | None


Event = list[ChoiceEvent] | EndEvent
"""What one entry of the stream holds: a step's, or the end."""
Choice = (
    tuple[int, Sequence[int], str, str | None, int | str | None]
    | tuple[int, Sequence[int], str, str | None, int | str | None, Mapping[str, Any]]
)
"""Index, new token ids, new text, finish reason, matched stop, and extras if there are any."""


def encode_choices(sequence_number: int, choices: Sequence[Choice]) -> bytes:
    """Numbers in the extras may be numpy arrays; what is not finite becomes null."""
    return orjson.dumps({"s": sequence_number, "c": choices}, option=orjson.OPT_SERIALIZE_NUMPY)


def encode_end(
    sequence_number: int, state: EndState, error: JobError | None, usage: Usage | None
) -> bytes:
    return orjson.dumps({"s": sequence_number, "end": state, "error": error, "usage": usage})


def decode(data: bytes) -> Event:
    """One stream entry's field `d` as the events in it."""
    event: dict[str, Any] = orjson.loads(data)
    first = event["s"]
    if "end" not in event:
        return [ChoiceEvent(first + k, *choice) for k, choice in enumerate(event["c"])]
    error, usage = event["error"], event["usage"]
    return EndEvent(
        first,
        event["end"],
        JobError(**error) if error else None,
        Usage(**usage) if usage else None,
    )
