"""What one choice of a job has gained so far, out of its events."""

from dataclasses import dataclass, field
from typing import Any

from completions.jobs.events import ChoiceEvent
from completions.responses.logprobs import Scores

_LISTS = ("chosen", "offsets", "top_ids", "top", "named")


@dataclass(slots=True)
class ChoiceRecord:
    """Folds the events of one choice."""

    index: int
    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    matched_stop: int | str | None = None
    matched_stop_text: str | None = None
    cached_tokens: int = 0
    hidden_states: list[float] | None = None
    routed_experts: str | None = None
    scores: dict[str, list[Any]] = field(default_factory=dict)
    """`logprobs` of all its events, put together."""
    prompt_scores: Scores | None = None

    def add(self, event: ChoiceEvent) -> None:
        self.texts.append(event.text)
        self.token_ids += event.token_ids
        if event.finish_reason is not None:
            self.finish_reason, self.matched_stop = event.finish_reason, event.matched_stop
        if event.extras:
            self._add_extras(event)

    def _add_extras(self, event: ChoiceEvent) -> None:
        extras = event.extras
        self.cached_tokens = extras.get("cached_tokens", self.cached_tokens)
        self.hidden_states = extras.get("hidden_states", self.hidden_states)
        self.routed_experts = extras.get("routed_experts", self.routed_experts)
        self.matched_stop_text = extras.get("matched_stop_text", self.matched_stop_text)
        self.prompt_scores = extras.get("prompt_logprobs", self.prompt_scores)
        scores = extras.get("logprobs", {})
        for name in _LISTS:
            if name in scores:
                self.scores.setdefault(name, []).extend(scores[name])

    def as_event(self, unfinished: str) -> ChoiceEvent:
        """All of it as one event; `unfinished` is the finish reason of a choice without one."""
        return ChoiceEvent(
            0,
            self.index,
            self.token_ids,
            "".join(self.texts),
            self.finish_reason or unfinished,
            self.matched_stop,
            {"logprobs": self.scores} if self.scores else {},
        )
