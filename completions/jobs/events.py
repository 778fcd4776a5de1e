"""The events of a job: one per engine step, then exactly one that ends the job.

An event is one JSON object in the field `d` of an entry of the job's Redis stream, which may join
the events of several steps. Keys are short because there is one event per step:

    {"s": 7, "c": [[choice, [token ids], "text", finish_reason, matched_stop, {extras}], ...]}
    {"s": 9, "end": "completed" | "failed" | "cancelled", "error": {...}, "usage": {...}}

`s` is the sequence number of the event's first choice; the k-th choice has s + k. Sequence numbers
are the API's resume cursors. They start at 1 and have no gap.

Extras are absent if there are none. All but the last four appear only in jobs that ask for them:

    logprobs         {"chosen": [n], "offsets": [n], "top_ids": [n][k], "top": [n][k],
                     "named": [n][m]}: natural logarithms for the n tokens of the event. `chosen`
                     is for the token itself, `top` for the k likeliest tokens at its position,
                     `named` for the m ids of token_ids_logprob. An offset counts the characters of
                     the choice's decoded text before the token. `forced`, [n], is
                     true for tokens about which the grammar left no choice; only in jobs that
                     also get `constraint`. `counts` [n], `log_mass` [n] and `support_ids` [n][...]
                     are the support of each draw.
    prompt_logprobs  the same without offsets, for the prompt from logprob_start_len on, and
                     `ranks` [n]; the first row of each array is null. Only in the first event of a
                     prompt's first choice, which precedes the first events of its other choices.
    num_allowed      how many tokens of a scored continuation the grammar allows, from the first on
    limit_ending     in the last event of a choice that its length limit ended and that was to be
                     closed: {"is_whole", "closed_at"}, the tokens before those that closed it; null
                     if none did
    hidden_states    in the last event: [hidden]
    routed_experts   in the last event: base64 of little-endian int32 [positions, layers, top_k]
    constraint       in the last event: {"forced_tokens", "steps", "overruled", "removed",
                     "forced_scored", "forced_overruled"}, what the grammar took away; `removed` is
                     a sum of probabilities over the steps
    cached_tokens    in the first event: tokens of the choice's prompt that were in the cache
    matched_stop_text  the text that the stop regex `matched_stop` matched
    forced           under a grammar: places in the token ids of those about which it left no choice
    engine           in the last event: the build of the engine that ended the choice

`top_ids` and `top` are absent if k is 0, `named` if m is 0.

A web process sees what a stream gained in a step before it is stored: as a line, in a message on
the process's channel, or in the field `s` of an entry of its control stream. Either has the lines
of one step of one worker. A line is a JSON array, and the scripts read its head:

    ["job", attempt, sequence number, number of choices, tokens, [choice ...], ...]
    ["job", attempt, 0, 0, 0, {"s": 9, "end": ...}, "id of the entry that has it"]
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NotRequired, TypedDict

import orjson
from msgspec import Struct, convert, field
from msgspec.structs import astuple

from completions.contract.usage import Usage

LINES_FIELD = b"s"
"""The field of a control stream's entry that has lines."""

EndState = Literal["completed", "failed", "cancelled"]
"""How a job can end. `ended` in lua/shared/keys_and_records.lua, `JobStatus` (models/jobs.py) and
`STATUS` (responses/completion.py) list these too; a test compares them."""


class TokenScores(TypedDict, total=False):
    """`logprobs` or `prompt_logprobs` of an event, one element for each token; those of a prompt
    begin with null."""

    chosen: list[float | None]
    offsets: list[int]
    top_ids: list[list[int] | None]
    top: list[list[float] | None]
    named: list[list[float] | None]
    forced: list[bool]
    ranks: list[int]
    counts: list[int]
    log_mass: list[float]
    support_ids: list[list[int]]


class LimitEnding(TypedDict):
    """How a choice ended that its length limit ended and that was to be closed."""

    is_whole: bool
    closed_at: int | None


class ConstraintEffect(TypedDict):
    """What a grammar took away from a choice."""

    forced_tokens: int
    steps: int
    overruled: int
    removed: float
    forced_scored: NotRequired[int]
    """Workers of 0.1.0 send neither this nor the next."""
    forced_overruled: NotRequired[int]


class Extras(TypedDict, total=False):
    """What few events have."""

    logprobs: TokenScores
    prompt_logprobs: TokenScores
    num_allowed: int
    limit_ending: LimitEnding
    hidden_states: list[float]
    routed_experts: str
    constraint: ConstraintEffect
    cached_tokens: int
    matched_stop_text: str
    forced: list[int]
    engine: str


class ChoiceEvent(Struct, frozen=True):
    """What one choice gained in one step: a part of an event."""

    index: int
    token_ids: Sequence[int]
    text: str
    finish_reason: str | None = None
    matched_stop: int | str | None = None
    extras: Extras = field(default_factory=Extras)
    sequence_number: int = 0
    """Its number among all of the job's, once it has been published."""


@dataclass(frozen=True, slots=True)
class JobError:
    code: str
    """One of :mod:`completions.contract.error_codes`."""
    message: str = ""
    """What is wrong with this job in particular; empty if the code says everything."""

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else self.code


@dataclass(frozen=True, slots=True)
class EndEvent:
    sequence_number: int
    state: EndState
    error: JobError | None
    usage: Usage | None
    finished: float | None = None
    """When the job ended, where the event was read from Redis."""


_NUM_PLAIN, _NUM_ALL = 5, 6
"""Values of a choice without extras and with them."""
Event = list[ChoiceEvent] | EndEvent
"""One entry of the Redis stream: what the choices gained in a step, or the end."""


def encode_choices(sequence_number: int, choices: Iterable[ChoiceEvent]) -> bytes:
    """Encode a step's event, whose first choice gets the number."""
    return make_event(sequence_number, encode_gains(choices))


def encode_gains(choices: Iterable[ChoiceEvent]) -> bytes:
    """Encode choices as elements of a JSON array, without its brackets: events and lines
    have them as they are. Numbers in the extras may be numpy arrays;
    numbers that are not finite become null."""
    values = [astuple(each)[: _NUM_ALL if each.extras else _NUM_PLAIN] for each in choices]
    return orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]


def make_event(sequence_number: int, gains: bytes) -> bytes:
    """Return the event of encoded choices."""
    return b'{"s":%d,"c":[%b]}' % (sequence_number, gains)


def encode_end(
    sequence_number: int, state: EndState, error: JobError | None, usage: Usage | None
) -> bytes:
    return orjson.dumps({"s": sequence_number, "end": state, "error": error, "usage": usage})


def decode(data: bytes) -> Event:
    event = orjson.loads(data)
    return read_end(event) if "end" in event else read_choices(event["s"], event["c"])


def read_choices(first: int, gains: Iterable[Sequence[Any]]) -> list[ChoiceEvent]:
    """Read the choices of an event, from their numbers on."""
    return [
        ChoiceEvent(index, ids, text, finish_reason, matched, more[0] if more else Extras(), number)
        for number, (index, ids, text, finish_reason, matched, *more) in enumerate(gains, first)
    ]


def read_end(event: dict[str, Any]) -> EndEvent:
    error, usage = event["error"], event["usage"]
    return EndEvent(
        event["s"],
        event["end"],
        JobError(**error) if error else None,
        convert(usage, Usage) if usage else None,
    )


def decode_entry(entry_id: bytes, data: bytes) -> Event:
    """Decode an entry of a Redis stream."""
    event = decode(data)
    return note_time(entry_id, event) if isinstance(event, EndEvent) else event


def note_time(entry_id: bytes, end: EndEvent) -> EndEvent:
    """Return an end with its time. The id of its entry has that in milliseconds; it is the time
    that the job's record has."""
    return replace(end, finished=int(entry_id.partition(b"-")[0]) / 1000)


def measure(event: Event) -> tuple[int, int]:
    """Return the number of an event's first choice, and the number after its last one."""
    if isinstance(event, EndEvent):
        return event.sequence_number, event.sequence_number + 1
    first = event[0].sequence_number
    return first, first + len(event)


def encode_line(
    job_id: str, attempt: int, first: int, count: int, tokens: int, gains: bytes
) -> bytes:
    """Return the line of encoded choices."""
    return b'["%b",%d,%d,%d,%d,%b]' % (job_id.encode(), attempt, first, count, tokens, gains)


def join_lines(lines: list[bytes]) -> bytes:
    return b"\n".join(lines)


def decode_lines(lines: bytes) -> Iterator[tuple[str, Event]]:
    """Yield the job and the event of each line. JSON has no line break within a value."""
    for job_id, _, first, count, _, *gains in orjson.loads(b"[%b]" % lines.replace(b"\n", b",")):
        if count:
            yield job_id, read_choices(first, gains)
        else:
            end, entry_id = gains
            yield job_id, note_time(entry_id.encode(), read_end(end))
