"""Ends a constrained choice before its length limit: sampled tokens that would leave no time for an
end are replaced by the way to one.

From some tokens before the limit on, the choice knows a way: tokens that lead to an accepted end. A
sampled token stands if a way of the remaining length follows it. Else the way's first token takes
its place, so that the way always fits. All of it is a function of the grammar, the limit and the
tokens so far: a run that resumes a choice ends it alike.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Final, Self

from llguidance import LLMatcher

from completions.contract.grammar_ends import (
    EndTokens,
    GrammarTexts,
    Way,
    adapt_way,
    find_suffix,
    find_way,
    is_accepting,
    is_broken,
    reuse_way,
)

_ROOT_STEPS: Final = 2000
"""Copies of the matcher to find a grammar's first way with, on the thread that compiles it."""
_LOOK_STEPS: Final = 512
"""Copies to find out how far the end is; some 30 ms at worst, at few tokens."""
_STEPS: Final = 32
"""Copies to find a way with after a token; some 2 ms at worst, and few tokens need any. Copies are
counted, not seconds: a run that resumes a choice must find the same."""
_COPY_SECONDS: Final = 0.0002
"""CPU seconds that a copy may take; a usual one takes a third of it. What exceeds that is slow."""
_ADAPTING_SECONDS: Final = 0.002
"""CPU seconds that adapting a way may take; it usually takes a tenth of it."""
_PATIENCE_SECONDS: Final = 0.25
"""CPU seconds by which all of this may be slow for one request: the whole batch waits for it.
Then the request fails, as with slow masks; it never ends otherwise than on another machine."""
_CHECKPOINT: Final = 64
"""After how many tokens a choice looks again how far its end is. After each failure it waits twice
as long."""
_FIRST_CHECKPOINT: Final = 8
"""After how many it does so first; then after twice as many, up to that."""
_NEAR_CHECKPOINT: Final = 16
"""After how many it looks again near the limit, where no way is known."""
_MIN_RESERVE: Final = 128
"""How many tokens before the limit a choice begins to look for its end, at least."""
_RESERVED_WAYS: Final = 4
"""How many times the way is kept free for it, at least."""


@dataclass(slots=True)
class ClosingPlan:
    """What the choices of one request have in common."""

    tokens: EndTokens
    texts: GrammarTexts
    banned: frozenset[int]
    """Tokens that no way has."""
    way: Way | None
    """From the beginning; None if none was found."""
    slow_seconds: float = 0.0
    gives_up: bool = False
    """Whether nothing is searched, since the first search met a limit of the grammar's lexer, which
    all copies of a matcher share."""

    @classmethod
    def make(
        cls,
        matcher: LLMatcher,
        tokens: EndTokens,
        grammar: str,
        enough: int = _ROOT_STEPS,
        banned: frozenset[int] = frozenset(),
    ) -> Self:
        """Return the plan of a grammar, at whose beginning the matcher stands. A way of at most
        ``enough`` tokens ends the search; tokens are banned if there is a way without them. If the
        plan gives up, the matcher is broken."""
        texts = tokens.read_texts(grammar)
        way = find_way(matcher, tokens, texts, _ROOT_STEPS, enough, banned)
        if way is None and banned:
            banned = frozenset()
            way = find_way(matcher, tokens, texts, _ROOT_STEPS, enough)
        gives_up = is_broken(matcher)
        texts = texts._replace(way=way or ())
        return cls(tokens, texts, banned, None if gives_up else way, gives_up=gives_up)

    @property
    def is_slow(self) -> bool:
        """Whether its searches have delayed other requests for too long."""
        return self.slow_seconds > _PATIENCE_SECONDS

    def search(self, matcher: LLMatcher, enough: int, max_steps: int) -> Way | None:
        """Return a way from where the matcher stands."""
        if self.is_slow or self.gives_up:
            return None
        with self._time(max_steps * _COPY_SECONDS):
            return find_way(matcher, self.tokens, self.texts, max_steps, enough, self.banned)

    def reuse(self, matcher: LLMatcher, way: Way, token_id: int) -> Way | None:
        """Return a way from behind a token that is near at hand. The matcher stands before it."""
        with self._time(_ADAPTING_SECONDS):
            return self._refuse_banned(reuse_way(matcher, self.tokens, way, token_id))

    def adapt(self, matcher: LLMatcher, way: Way) -> Way | None:
        """Return a way from where the matcher stands that goes on with a part of an earlier one."""
        with self._time(_ADAPTING_SECONDS):
            return self._refuse_banned(adapt_way(matcher, self.tokens, way))

    def find_suffix(self, matcher: LLMatcher, way: Way) -> Way | None:
        """Return the end of an earlier way that is one from where the matcher stands."""
        with self._time(_ADAPTING_SECONDS):
            return self._refuse_banned(find_suffix(matcher, self.tokens, way))

    def _refuse_banned(self, way: Way | None) -> Way | None:
        return None if way is None or not self.banned.isdisjoint(way) else way

    @contextmanager
    def _time(self, usual_seconds: float) -> Iterator[None]:
        """Add what takes longer than usual to the slow seconds."""
        began = time.thread_time()
        yield
        self.slow_seconds += max(0.0, time.thread_time() - began - usual_seconds)


class Closing:
    """How one choice comes to its end in time."""

    def __init__(self, plan: ClosingPlan, limit: int) -> None:
        """``limit`` is the most tokens of the choice."""
        self.plan = plan
        self._left = limit
        self._count = 0
        self._way = plan.way
        """From where the choice is now, or was when it looked last; None if no way is known."""
        self._is_current = plan.way is not None
        """Whether the way is from where the choice is now."""
        self._reserve = _reserve(plan.way)
        self._looks_at = _NEAR_CHECKPOINT if self.is_near else _FIRST_CHECKPOINT
        """Before which token it looks again how far the end is."""
        self._prepared = -1
        """How many tokens came before the one that was prepared for."""
        self._next: tuple[int, Way | None] | None = None
        """The way that follows a token, if it was just looked for."""
        self.closed_at: int | None = None
        """How many tokens came before the remaining ones were no more than the way and one."""

    def copy(self) -> "Closing":
        return copy(self)

    @property
    def is_near(self) -> bool:
        """Whether tokens are looked at before they are appended."""
        return self._left <= self._reserve

    def review(self, matcher: LLMatcher, token_id: int) -> int:
        """Return the token that takes the place of a sampled one: itself, if an end stays within
        reach. ``matcher`` stands before it."""
        if not self.is_near:
            return token_id
        self._prepare(matcher)
        way = self._get_way()
        if way is None or len(way) > self._left:
            return token_id  # no end within the limit is known, so nothing is lost
        after = self._find_way_after(matcher, token_id)
        if after is not None and len(after) < self._left:
            return token_id
        if way:
            return way[0]
        ends = (end for end in self.plan.tokens.end_ids if matcher.validate_tokens([end]))
        return min(ends, key=self.plan.banned.__contains__, default=token_id)

    def leaves_only(self, matcher: LLMatcher, token_id: int) -> bool:
        """Return whether the limit leaves little but a way that begins with the token."""
        if not self.is_near:
            return False
        self._prepare(matcher)
        way = self._get_way()
        if not way or way[0] != token_id:
            return False
        return len(way) <= self._left <= len(way) + 1

    def note(self, matcher: LLMatcher, token_id: int) -> None:
        """Follow a token that is appended. ``matcher`` stands before it."""
        self._prepare(matcher)
        way = self._get_way()
        if not self.is_near:
            self._is_current = False
        elif way is not None and len(way) <= self._left:
            # A text that may end anywhere may also be just cut.
            ends = bool(way) or token_id in self.plan.tokens.end_ids
            if self.closed_at is None and self._left <= len(way) + 1 and ends:
                self.closed_at = self._count
            self._way = self._find_way_after(matcher, token_id)
            if self._way is None:
                self._is_current, self._looks_at = False, self._count + 1
        elif way is not None:  # it is too long, and so is what is much like it
            self._way, self._is_current = None, False
            self._looks_at = self._count + _NEAR_CHECKPOINT
        self._next = None
        self._left -= 1
        self._count += 1

    def _get_way(self) -> Way | None:
        return self._way if self._is_current else None

    def _prepare(self, matcher: LLMatcher) -> None:
        """Look where the end is, if it is time to. Once a token, whether that is sampled or
        replayed: what is found depends on the tokens before it alone."""
        if self._prepared == self._count:
            return
        self._prepared = self._count
        enters = self.is_near and self._way is not None and not self._is_current
        if enters or self._count >= self._looks_at:
            self._look(matcher)

    def _look(self, matcher: LLMatcher) -> None:
        """Find out how far the end is, so as to begin early enough."""
        if self._is_current:
            self._looks_at = self._count + _CHECKPOINT
            return
        way: Way | None = ()
        if not is_accepting(matcher):
            way = self._find_suffix(matcher) or self.plan.search(matcher, _ROOT_STEPS, _LOOK_STEPS)
        if way is not None:
            self._reserve = _reserve(way)
            self._looks_at = self._count + min(self._count or 1, _CHECKPOINT)
        elif self.is_near:
            self._looks_at = self._count + _NEAR_CHECKPOINT
        else:
            self._looks_at = 2 * self._count
        self._way, self._is_current = way, way is not None

    def _find_suffix(self, matcher: LLMatcher) -> Way | None:
        """Return the end of the way that was known last, if it is still one."""
        return self.plan.find_suffix(matcher, self._way) if self._way else None

    def _find_way_after(self, matcher: LLMatcher, token_id: int) -> Way | None:
        if self._next is None or self._next[0] != token_id:
            self._next = token_id, self._look_after(matcher, token_id)
        return self._next[1]

    def _look_after(self, matcher: LLMatcher, token_id: int) -> Way | None:
        """Return a way that follows a token: the rest of the present one, one that is much like it,
        be it too long, or else another: a search takes longer than a step may."""
        way = self._way
        if way and token_id == way[0]:
            return way[1:]
        if way is not None and (near := self.plan.reuse(matcher, way, token_id)) is not None:
            return near
        after = matcher.deep_copy()
        after.consume_token(token_id)
        if after.is_error():
            return None
        if is_accepting(after):
            return ()
        if way is not None:
            if (adapted := self.plan.adapt(after, way)) is not None:
                return adapted
            if self._left <= len(way):
                return None  # most searches would be in vain, and each token would need one
        return self.plan.search(after, max(0, self._left - 1), _STEPS)


def _reserve(way: Way | None) -> int:
    """Return how many tokens before the limit a choice with this way looks for its end."""
    return max(_MIN_RESERVE, _RESERVED_WAYS * len(way or ()))
