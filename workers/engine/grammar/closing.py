"""Ends a constrained choice before its length limit: sampled tokens that would leave no time for an
end are replaced by the way to one.

From some tokens before the limit on, the choice knows a way: tokens that lead to an accepted end. A
sampled token stands if a way of the remaining length follows it. Else the way's first token takes
its place, so that the way always fits. All of it is a function of the grammar, the limit and the
tokens so far: a run that resumes a choice ends it alike.
"""

from dataclasses import dataclass
from typing import Final, Self

from llguidance import LLMatcher

from completions.contract.grammar_ends import EndTokens, Way, adapt_way, find_way, is_accepting

_ROOT_STEPS: Final = 2000
"""Copies of the matcher to find a choice's first way with; about 0.1 s at worst."""
_STEPS: Final = 100
"""Copies to find a way with after a token: some 3 ms at worst; few tokens need any."""
_MIN_RESERVE: Final = 128
"""How many tokens before the limit a choice begins to look for its end, at least."""


@dataclass(frozen=True, slots=True)
class ClosingPlan:
    """What the choices of one grammar have in common."""

    tokens: EndTokens
    literals: tuple[Way, ...]
    reserve: int
    """How many tokens before the limit the search begins."""

    @classmethod
    def make(cls, matcher: LLMatcher, tokens: EndTokens, grammar: str) -> Self:
        """Return the plan of a grammar, at whose beginning the matcher stands."""
        literals = tokens.read_literals(grammar)
        way = find_way(matcher, tokens, literals, _ROOT_STEPS, enough=_ROOT_STEPS)
        return cls(tokens, literals, max(_MIN_RESERVE, 4 * len(way or ())))


class Closing:
    """How one choice comes to its end in time."""

    def __init__(self, plan: ClosingPlan, limit: int) -> None:
        """``limit`` is the most tokens of the choice."""
        self._plan = plan
        self._left = limit
        self._count = 0
        self._way: Way | None = None
        """From where the choice is now; None if no way is known."""
        self._knows = False
        """Whether a way was searched for."""
        self._next: tuple[int, Way | None] | None = None
        """The way that follows a token, if it was just looked for."""
        self.closed_at: int | None = None
        """How many tokens came before the remaining ones were no more than the way and one."""

    def copy(self) -> "Closing":
        other = Closing(self._plan, self._left)
        other._count, other._way, other._knows = self._count, self._way, self._knows
        other._next, other.closed_at = self._next, self.closed_at
        return other

    @property
    def is_near(self) -> bool:
        """Whether tokens are looked at before they are appended."""
        return self._left <= self._plan.reserve

    def review(self, matcher: LLMatcher, token_id: int) -> int:
        """Return the token that takes the place of a sampled one: itself, if an end stays within
        reach. ``matcher`` stands before it."""
        if not self.is_near:
            return token_id
        way = self._find_way(matcher)
        if way is None or len(way) > self._left:
            return token_id  # no end within the limit is known, so nothing is lost
        after = self._find_way_after(matcher, token_id)
        if after is not None and len(after) < self._left:
            return token_id
        if way:
            return way[0]
        ends = (end for end in self._plan.tokens.end_ids if matcher.validate_tokens([end]))
        return next(ends, token_id)

    def note(self, matcher: LLMatcher, token_id: int) -> None:
        """Follow a token that is appended. ``matcher`` stands before it."""
        if self.is_near:
            way = self._find_way(matcher)
            if (
                self.closed_at is None
                and way is not None
                and len(way) <= self._left <= len(way) + 1
                and (way or token_id in self._plan.tokens.end_ids)  # a text may also be just cut
            ):
                self.closed_at = self._count
            self._way = self._find_way_after(matcher, token_id)
        self._next = None
        self._left -= 1
        self._count += 1

    def _find_way(self, matcher: LLMatcher) -> Way | None:
        """Return the way from where the choice is. One that is about as long as the rest is
        replaced by a shorter one, if there is any."""
        if not self._knows:
            self._way = self._search(matcher, self._left - 2, _ROOT_STEPS)
            self._knows = True
        elif self._way and len(self._way) >= self._left - 1:
            shorter = self._search(matcher, self._left - 3)
            if shorter is not None and len(shorter) < len(self._way):
                self._way = shorter
        return self._way

    def _find_way_after(self, matcher: LLMatcher, token_id: int) -> Way | None:
        if self._next is None or self._next[0] != token_id:
            self._next = token_id, self._look_after(matcher, token_id)
        return self._next[1]

    def _look_after(self, matcher: LLMatcher, token_id: int) -> Way | None:
        """Return a way that follows a token: the rest of the present one, the present one if it
        still leads to an end, or another."""
        way = self._way
        if way and token_id == way[0]:
            return way[1:]
        after = matcher.deep_copy()
        after.consume_token(token_id)
        if after.is_error():
            return None
        if is_accepting(after):
            return ()
        enough = self._left - 1
        reused = None if way is None else adapt_way(after, self._plan.tokens, way, token_id)
        if reused is not None and len(reused) <= enough:
            return reused
        return self._search(after, enough)

    def _search(self, matcher: LLMatcher, enough: int, max_steps: int = _STEPS) -> Way | None:
        plan = self._plan
        return find_way(matcher, plan.tokens, plan.literals, max_steps, max(0, enough))
