"""How far a batch is, what it costs, and when it will end."""

from collections.abc import Callable
from dataclasses import dataclass

from quire_client.exchange import Body


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a batch."""

    status: str
    total: int
    completed: int
    failed: int
    lines_per_second: float | None
    seconds_left: float | None
    cost: float | None
    """The cost so far, by the prices of the model; None if it has none."""

    @property
    def share(self) -> float:
        return (self.completed + self.failed) / self.total if self.total else 0.0

    def __str__(self) -> str:
        done = self.completed + self.failed
        words = [f"{done}/{self.total} lines" if self.total else self.status]
        if self.failed:
            words.append(f"{self.failed} failed")
        if self.lines_per_second:
            words.append(f"{self.lines_per_second:.1f}/s")
        if self.seconds_left is not None:
            words.append(f"{format_duration(self.seconds_left)} left")
        if self.cost is not None:
            words.append(f"cost {self.cost:.2f}")
        return ", ".join(words)


Report = Callable[[Progress], None]


def make_progress(batch: Body, prices: Body | None) -> Progress:
    counts, now = batch["request_counts"], batch.get("progress") or {}
    cost = None
    if prices:
        usage = batch["usage"]
        cached = usage["input_tokens_details"]["cached_tokens"]
        cost = (
            (usage["input_tokens"] - cached) * prices["prompt"]
            + cached * prices["cached_prompt"]
            + usage["output_tokens"] * prices["completion"]
        ) / 1_000_000
    return Progress(
        batch["status"],
        counts["total"],
        counts["completed"],
        counts["failed"],
        now.get("lines_per_second"),
        now.get("seconds_left"),
        cost,
    )


def format_duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes:02}" if hours else f"{minutes}m{rest:02}" if minutes else f"{rest}s"
