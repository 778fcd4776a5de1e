"""The search for a way to an end: texts, the cheapest first."""

import heapq
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from llguidance import LLMatcher

from completions.contract.grammar_ends.tokens import EndTokens, GrammarTexts, Way
from completions.contract.grammar_ends.ways import (
    find_suffix,
    is_accepting,
    is_set,
    shorten_way,
)

_FEW = 64
"""Where a grammar allows at most so many tokens, all of them are tried."""
_DEVIATION: Final = 32
"""What it costs to pass over a child, in tokens."""
_DEAD_END: Final = 4
"""What it costs to pass over one that led nowhere."""
_KNOWN: Final = 32
"""What a child costs that allows the same tokens as another place that is as far."""
_LOOP: Final = 3
"""What a child costs that allows the same tokens as a place on its own path: it may lead nowhere,
or be one of several equal values."""
_FEW_LOOPS: Final = 4
"""After so many of them one after the other, the same token is repeated in runs."""
_RUN, _MAX_RUN = 8, 256
"""The fewest and the most repeated at once: for a string that has a least length."""
_MAX_REPEATS: Final = 16
"""How often one search does so in vain."""
_TOKENS_OF_COPY: Final = 512
"""As many tokens that the matcher is handed without a copy count as one copy, and twice as many of
a path, which each copy that goes on from it repeats."""
_PHASE: Final = 150
"""After so many copies without an end, the search goes on from the place that came farthest."""
_NOT_ZERO = re.compile(rb"[^\x00]")


def find_way(
    matcher: LLMatcher,
    tokens: EndTokens,
    texts: GrammarTexts,
    max_steps: int,
    enough: int,
    banned: frozenset[int] = frozenset(),
) -> Way | None:
    """Return the tokens of a way to an accepted end from where `matcher` stands, which stays as it
    is: the first that has at most `enough` tokens, or else the shortest that `max_steps` copies of
    the matcher lead to; None if they lead to none. It has a banned token only where the grammar
    allows no other."""
    if matcher.is_accepting():
        return ()
    best: Way | None = None
    for path in _Search(tokens, texts, max_steps, banned).iter_paths(matcher):
        shorter = shorten_way(matcher, tokens, path)
        way = shorter if banned.isdisjoint(shorter) else path
        if best is None or len(way) < len(best):
            best = way
        if len(best) <= enough:
            break
    return best


@dataclass(slots=True)
class _Node:
    """A place in the search."""

    matcher: LLMatcher
    path: Way
    mask: bytes
    children: Sequence[Way] = ()
    """What may follow, in the order in which it is tried."""
    next_child: int = -1
    """-1 until the children are known."""
    has_loop: bool = False
    """Whether a child allows the same tokens as this place."""
    loops: int = 0
    """How many tokens that changed nothing lead here."""
    num_forced: int = 0
    """How many times the grammar forced what follows: how far the place is."""
    num_new: int = 0
    """How many places since then allow tokens as no other place did that is as far."""
    phase: int = 0
    """Of the search; places of the latest one come first."""

    @property
    def progress(self) -> tuple[int, int]:
        return self.num_forced, self.num_new


class _Search:
    """Follows the first child of each place first, and a place again for each child that was
    passed over: what deviates least comes next. From time to time it settles for the place that
    came farthest, since many values that each need a deviation would multiply."""

    def __init__(
        self,
        tokens: EndTokens,
        texts: GrammarTexts,
        max_steps: int,
        banned: frozenset[int],
    ) -> None:
        self._tokens = tokens
        self._literals = [each for each in texts.literals if banned.isdisjoint(each)]
        self._samples = [each for each in texts.samples if banned.isdisjoint(each)]
        self._banned = banned
        self._known_way = texts.way
        self._steps_left = max_steps
        self._order = count()
        self._waiting: list[tuple[int, int, int, _Node]] = []
        self._farthest: _Node | None = None
        """The first place before which the grammar forced what follows most often."""
        self._deepest: _Node | None = None
        """Among places as far, the one with most new places before it, since the phase began."""
        self._settled: _Node | None = None
        """Where the phase began."""
        self._phase = 0
        self._settles_at = max_steps - _PHASE
        """How many copies are left when the next phase begins."""
        self._repeats_left = _MAX_REPEATS
        self._seen: set[bytes] = set()
        self._firsts: dict[tuple[int, bytes], Way] = {}
        """The first path to a place as far as that, with that mask."""

    def iter_paths(self, matcher: LLMatcher) -> Iterator[Way]:
        """Yield the paths to accepted ends that are found."""
        root = matcher.deep_copy()
        path = _follow_forced(root, ())
        if path is None:
            return
        if is_accepting(root):
            yield path
            return
        begin = _Node(root, path, root.compute_bitmask())
        yield from self._join(begin)
        self._push(0, begin)
        while self._waiting and self._steps_left > 0:
            if self._steps_left <= self._settles_at:
                self._settle()
            _, cost, _, node = heapq.heappop(self._waiting)
            if node.next_child < 0:
                node.children, node.next_child = self._list_children(node), 0
            if node.next_child == len(node.children):
                continue
            child = node.children[node.next_child]
            node.next_child += 1
            num_waiting = len(self._waiting)
            yield from self._try(node, child, cost)
            is_dead = len(self._waiting) == num_waiting
            self._push(cost + (_DEAD_END if is_dead else _DEVIATION), node)

    def _settle(self) -> None:
        """Begin a phase at the farthest place, or else the deepest. What else waits comes after."""
        self._settles_at = self._steps_left - _PHASE
        node = self._farthest
        if node is None or node is self._settled or node.phase < self._phase:
            node = self._deepest
        if node is None or node.phase < self._phase:
            return
        self._settled, self._deepest = node, None
        self._phase += 1
        node.phase, node.next_child = self._phase, 0
        node.children = self._list_children(node)
        self._seen.difference_update(self._tokens.spell((*node.path, *c)) for c in node.children)
        self._push(0, node)

    def _list_children(self, node: _Node) -> Sequence[Way]:
        mask = node.mask
        literals = [each for each in self._literals if is_set(mask, each[0])]
        ids = _list_few(mask)
        if ids:
            ids = sorted(set(ids).difference(self._tokens.end_ids), key=self._tokens.get_rank)
        else:
            literals += self._list_samples(node)
            ids = [id for id in self._tokens.order if is_set(mask, id)]
        ids = [id for id in ids if id not in self._banned]
        return [*literals, *((id,) for id in ids)]

    def _list_samples(self, node: _Node) -> list[Way]:
        """Return the shortest ends of texts of patterns that may follow, if their quote may not."""
        if not self._samples or is_set(node.mask, self._samples[0][-1]):
            return []
        ends: dict[Way, None] = {}
        most = checked = self._steps_left * _TOKENS_OF_COPY
        for sample in self._samples:
            for start in reversed(range(len(sample) - 1)):
                end = sample[start:]
                num_valid = node.matcher.validate_tokens(list(end))
                most -= 1 + num_valid
                if num_valid == len(end):
                    ends[end] = None
                    break
                if most <= 0:
                    break
        self._steps_left -= (checked - most) // _TOKENS_OF_COPY
        return list(ends)

    def _try(self, node: _Node, child: Way, cost: int) -> Iterator[Way]:
        """Follow a child. Yield the path if it leads to an end."""
        text = self._tokens.spell((*node.path, *child))
        if text in self._seen:
            return
        self._seen.add(text)
        self._steps_left -= 1 + len(node.path) // (2 * _TOKENS_OF_COPY)
        matcher = node.matcher.deep_copy()
        if matcher.try_consume_tokens(list(child)) != len(child):
            return
        before = (*node.path, *child)
        path = _follow_forced(matcher, before)
        if path is None:
            return
        if is_accepting(matcher):
            yield path
            return
        mask = matcher.compute_bitmask()
        loops = 0
        if mask == node.mask:
            if node.has_loop or len(child) > 1:
                return
            node.has_loop, cost, loops = True, cost + _LOOP, node.loops + 1
        is_forced = len(path) > len(before)
        num_forced = node.num_forced + is_forced
        first = self._firsts.setdefault((num_forced, mask), path)
        is_new, is_own = first is path, path[: len(first)] == first
        num_new = is_new + (0 if is_forced else node.num_new)
        there = _Node(
            matcher, path, mask, loops=loops, num_forced=num_forced, num_new=num_new,
            phase=node.phase,
        )  # fmt: skip
        self._note_progress(there)
        cost += not is_forced
        if not is_new and not loops:
            cost += _LOOP if is_own else _KNOWN
        self._push(cost, there)
        if is_new or is_forced:
            yield from self._join(there)
        if loops == _FEW_LOOPS:
            self._repeat(there, child, cost)

    def _join(self, node: _Node) -> Iterator[Way]:
        """Yield the path that goes on with the end of the known way, if one does."""
        if not self._known_way:
            return
        self._steps_left -= 1
        most = 4 * _TOKENS_OF_COPY
        end = find_suffix(node.matcher, self._tokens, self._known_way, most)
        if end is not None and self._banned.isdisjoint(end):
            self._known_way = ()  # what else it leads to is hardly shorter
            yield (*node.path, *end)

    def _note_progress(self, node: _Node) -> None:
        if self._farthest is None or node.num_forced > self._farthest.num_forced:
            self._farthest = node
        if self._deepest is None or node.progress > self._deepest.progress:
            self._deepest = node

    def _repeat(self, node: _Node, child: Way, cost: int) -> None:
        """Wait at the place where a repeated token ceases to allow the same tokens, if there is one
        nearby: where a text is almost as long as it must be."""
        if self._repeats_left == 0:
            return
        matcher, path, times = node.matcher, node.path, _RUN
        has_end = False
        while _RUN <= times <= _MAX_RUN:
            self._steps_left -= 1
            there = matcher.deep_copy()
            run = child * times
            is_taken = there.try_consume_tokens(list(run)) == len(run)
            if is_taken and not is_accepting(there) and there.compute_bitmask() == node.mask:
                matcher, path = there, path + run
            else:
                has_end = True
            times = times // 2 if has_end else times * 2
        if has_end and path != node.path:
            self._push(cost, replace(node, matcher=matcher, path=path))
        else:
            self._repeats_left -= 1

    def _push(self, cost: int, node: _Node) -> None:
        heapq.heappush(self._waiting, (-node.phase, cost, -next(self._order), node))


def _follow_forced(matcher: LLMatcher, path: Way) -> Way | None:
    """Consume what the grammar forces. Return the longer path, None if it leads nowhere."""
    while not is_accepting(matcher):
        if matcher.is_error() or matcher.is_stopped():
            return None
        forced = matcher.compute_ff_tokens()
        if not forced:
            break
        if matcher.try_consume_tokens(forced) != len(forced):
            return None
        path = (*path, *forced)
    return path


def _list_few(mask: bytes) -> list[int]:
    """Return the tokens of a mask that has few; none otherwise."""
    if int.from_bytes(mask, "little").bit_count() > _FEW:
        return []
    ids: list[int] = []
    for match in _NOT_ZERO.finditer(mask):
        place = match.start()
        ids += (place * 8 + bit for bit in range(8) if mask[place] >> bit & 1)
    return ids
