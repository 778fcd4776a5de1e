"""The phases of one job: queued, computing the prompt, generating."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone

from completions.admin.display import milliseconds


@dataclass(frozen=True, slots=True)
class Timeline:
    """When each phase of a job began, in milliseconds since its arrival; None if unknown."""

    created: datetime
    claimed: float | None
    first_token: float | None
    end: float | None

    def phases(self) -> list[dict[str, Any]]:
        """The phases as parts of a bar."""
        until = self.end
        if until is None:
            until = (timezone.now() - self.created).total_seconds() * 1000
        if self.claimed is None:
            spans = [("waiting", "queued", until)]
        else:
            claimed = min(self.claimed, until)
            spans = [("waiting", "queued", claimed)]
            if self.first_token is None:
                spans.append(("decode", "in the worker", until - claimed))
            else:
                first = min(max(self.first_token, claimed), until)
                spans.append(("prefill", "to the first token", first - claimed))
                spans.append(("decode", "generating", until - first))
        return [
            {
                "tone": tone,
                "name": name,
                "took": milliseconds(took),
                "percent": round(100 * took / until, 2) if until else 0,
            }
            for tone, name, took in spans
        ]

    def moments(self) -> list[tuple[str, str, str]]:
        """Return (event, clock time, time since arrival) for each known event."""
        named = (
            ("Accepted", 0.0), ("Claimed by a worker", self.claimed),
            ("First token", self.first_token), ("Ended", self.end),
        )  # fmt: skip
        return [
            (
                name,
                f"{(self.created + timedelta(milliseconds=at)).astimezone(UTC):%Y-%m-%d %H:%M:%S}",
                f"+ {milliseconds(at)}",
            )
            for name, at in named
            if at is not None
        ]
