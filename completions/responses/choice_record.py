"""What the choices of a job have gained so far, folded from its events."""

from dataclasses import dataclass, field
from typing import Any, Final, cast

from completions.jobs.events import (
    ChoiceEvent,
    ConstraintEffect,
    EndEvent,
    Extras,
    LimitEnding,
    TokenScores,
)
from completions.responses.response_context import ResponseFields

ABORT: Final = "abort"
"""The finish reason of a cancelled choice, as in SGLang."""

LENGTH: Final = "length"
"""The finish reason of a choice that ended before the model ended it."""


@dataclass(slots=True)
class ChoiceRecord:
    """Collector of the events of one choice."""

    index: int
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    matched_stop: int | str | None = None
    matched_stop_text: str | None = None
    cached_tokens: int = 0
    hidden_states: list[float] | None = None
    routed_experts: str | None = None
    constraint: ConstraintEffect | None = None
    """What the grammar removed, from the last event."""
    scores: TokenScores = field(default_factory=TokenScores)
    """`logprobs` of all its events, joined."""
    prompt_scores: TokenScores | None = None
    forced: list[int] = field(default_factory=list)
    """Places of the tokens about which the grammar left no choice."""
    num_allowed: int | None = None
    """How many tokens of a scored continuation the grammar allows, from the first on."""
    limit_ending: LimitEnding | None = None
    """How a choice ended whose length limit ended it, if it was to be closed."""
    engine: str | None = None
    """The build of the engine that ended the choice."""

    @property
    def is_cut(self) -> bool:
        """Whether the length limit ended a choice that was to be closed, and it is not whole."""
        return self.limit_ending is not None and not self.limit_ending["is_whole"]

    def add(self, event: ChoiceEvent) -> None:
        self.texts.append(event.text)
        first = len(self.token_ids)
        self.token_ids += event.token_ids
        if event.finish_reason is not None:
            self.finish_reason, self.matched_stop = event.finish_reason, event.matched_stop
        if event.extras:
            self._add_extras(event, first)

    def _add_extras(self, event: ChoiceEvent, first: int) -> None:
        """Add what few events have. The event's first token is the choice's token ``first``."""
        extras = event.extras
        self.forced += [first + place for place in extras.get("forced", ())]
        self.engine = extras.get("engine", self.engine)
        self.num_allowed = extras.get("num_allowed", self.num_allowed)
        self.limit_ending = extras.get("limit_ending", self.limit_ending)
        self.cached_tokens = extras.get("cached_tokens", self.cached_tokens)
        self.hidden_states = extras.get("hidden_states", self.hidden_states)
        self.routed_experts = extras.get("routed_experts", self.routed_experts)
        self.constraint = extras.get("constraint", self.constraint)
        self.matched_stop_text = extras.get("matched_stop_text", self.matched_stop_text)
        self.prompt_scores = extras.get("prompt_logprobs", self.prompt_scores)
        if "logprobs" in extras:
            _extend(self.scores, extras["logprobs"])

    def to_event(self) -> ChoiceEvent:
        """Return all events of the choice as one. A choice without a finish reason was
        cancelled."""
        extras = Extras()
        if self.scores:
            extras["logprobs"] = self.scores
        if self.forced:
            extras["forced"] = self.forced
        return ChoiceEvent(
            self.index,
            self.token_ids,
            "".join(self.texts),
            self.finish_reason or ABORT,
            self.matched_stop,
            extras,
        )


def _extend(scores: TokenScores, more: TokenScores) -> None:
    """Append the elements of another event of the same choice."""
    whole = cast("dict[str, list[Any]]", scores)
    for name, elements in cast("dict[str, list[Any]]", more).items():
        whole.setdefault(name, []).extend(elements)


class Choices:
    """The records of all choices of one job."""

    def __init__(self, context: ResponseFields) -> None:
        self.context = context
        self.records = [ChoiceRecord(index) for index in range(context.num_choices)]

    def add(self, event: ChoiceEvent) -> ChoiceRecord:
        record = self.records[event.index]
        record.add(event)
        return record

    def end_at(self, end: EndEvent) -> list[ChoiceEvent]:
        """Return the ends of the choices that a job's end cut short: none if the job failed and
        what it generated is no answer.

        A deadline is an end like the context's if the request left the length open and each choice
        has text. A request with a length of its own fails instead: `length` would mean that it was
        reached.
        """
        if end.state == "cancelled":
            reason = ABORT
        elif end.error is not None and end.error.code == "generation_timeout":
            has_begun = all(record.token_ids for record in self.records)
            if not (self.context.default_length and has_begun):
                return []
            reason = LENGTH
        else:
            return []
        unended = [record.index for record in self.records if record.finish_reason is None]
        return [ChoiceEvent(index, [], "", reason) for index in unended]

    def get_prompt_scores(self, choice: int) -> TokenScores | None:
        """Return the scores of a choice's prompt, which come with the first of the prompt's
        choices."""
        return self.records[choice - choice % self.context.n].prompt_scores

    def finish_reasons(self) -> list[str | None]:
        """Return the finish reason of each choice, None while it goes on."""
        return [record.finish_reason for record in self.records]

    def make_sglext(self) -> dict[str, object]:
        """Return SGLang's extension of the response, from its first choice; empty if the request
        asks for none of it."""
        extension: dict[str, object] = {}
        if self.context.routed_experts:
            extension["routed_experts"] = self.records[0].routed_experts
        if self.context.cached_tokens_details:
            extension["cached_tokens_details"] = {"device": self.records[0].cached_tokens}
        return extension
