"""What goes into the engine. No torch."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from completions.contract.job_request import JobRequest


class Audience(StrEnum):
    """Who waits for a request's output."""

    TOKENS = "tokens"
    """Somebody reads its tokens as they come."""
    ANSWER = "answer"
    """Somebody waits for its end."""
    NOBODY = "nobody"


class Request(JobRequest, frozen=True, kw_only=True):
    """A job's request, and what belongs to one attempt at it."""

    request_id: str
    organization: str = ""
    """Within a priority, organizations get equal numbers of tokens."""
    audience: Audience = Audience.NOBODY
    """How long its next token may take while prompts of other requests are computed."""
    deadline: float | None = None
    """On the clock of ``time.monotonic()``."""
    published: Mapping[int, tuple[int, ...]] = msgspec.field(default_factory=dict)
    """Output tokens by choice that an earlier run of this request delivered. The engine replays
    them and never emits them again."""
    published_ends: frozenset[int] = frozenset()
    """Choices whose end was delivered too. The engine emits nothing for them."""
