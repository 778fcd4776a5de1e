"""The shortest way to the end of a grammar, as far as a bounded search finds it.

llguidance has no question for it, but its matchers are copied and advanced in a microsecond. So the
search tries texts, the cheapest first: those that close what is open, then those that begin the
least, then any other. What it finds is checked with the matcher itself, so it is an end; that there
is none, or none shorter, it cannot prove.
"""

import heapq
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Final

from llguidance import LLMatcher, LLTokenizer

from completions.contract.token_bytes import is_text

Way = tuple[int, ...]
"""The ids of tokens that lead to an accepted end; empty where the text may end already."""
_FEW = 64
"""Where a grammar allows at most so many tokens, all of them are tried."""
_ORDER: Final = b"\"@}]')>;,:0{[( \n1aA-./<=_e&|\\2"
"""Single bytes from the likeliest to lead to an end on; all others follow."""
_NUM_CLOSERS: Final = 12
"""How many of them close something, or are the shortest value."""
_DEVIATION: Final = 32
"""What it costs to pass over a child, in tokens."""
_DEAD_END: Final = 4
"""What it costs to pass over one that led nowhere."""
_KNOWN: Final = 32
"""What a child costs that allows the same tokens as another place that is as far."""
_LOOP: Final = 3
"""What a child costs that allows the same tokens as the place before: it may lead nowhere."""
_FEW_LOOPS: Final = 4
"""After so many of them one after the other, the same token is repeated in runs."""
_RUN, _MAX_RUN = 8, 256
"""The fewest and the most repeated at once: for a string that has a least length."""
_MAX_REPEATS: Final = 16
"""How often one search does so in vain."""
_PHASE: Final = 150
"""After so many copies without an end, the search goes on from the place that came farthest."""
_LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)+)"')
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r"}
_MAX_LITERALS = 32
_NOT_ZERO = re.compile(rb"[^\x00]")


class EndTokens:
    """The tokens of a model that the search writes."""

    def __init__(
        self,
        tokenizer: LLTokenizer,
        texts: Sequence[bytes],
        special_ids: Iterable[int],
        end_ids: Iterable[int],
    ) -> None:
        self.texts = texts
        self.end_ids = tuple(sorted(set(end_ids)))
        self.special_ids = frozenset(special_ids)
        self._tokenizer = tokenizer
        rank = {byte: place for place, byte in enumerate(_ORDER)}
        self._ranks = [rank.get(byte, len(rank) + byte) for byte in range(256)]
        markers = sorted(self.special_ids.difference(self.end_ids))
        single = [id for id, text in enumerate(texts) if len(text) == 1]
        single = [id for id in single if id not in self.special_ids]
        self.order = (*markers, *sorted(single, key=self.get_rank))
        """What is tried where a grammar allows many tokens."""
        self.order_of_closers = self.order[len(markers) :][:_NUM_CLOSERS]

    def get_rank(self, token_id: int) -> tuple[int, int]:
        """Return a key that sorts tokens by how likely they are to lead to an end."""
        text = self.texts[token_id]
        is_marker = token_id in self.special_ids or not text
        return (-1, token_id) if is_marker else (self._ranks[text[0]], len(text))

    def read_literals(self, grammar: str) -> tuple[Way, ...]:
        """Return the tokens of the literals that a grammar in llguidance's text format has: the
        tags that free text may have to end with."""
        return _read_literals(self, grammar)

    def spell(self, path: Iterable[int]) -> bytes:
        """Return a text that two paths share only if they lead to the same place."""
        special, texts = self.special_ids, self.texts
        return b"".join(b"\xff%d;" % id if id in special else texts[id] for id in path)

    def tokenize(self, text: bytes) -> Way:
        """Return the tokens of a text as the model's tokenizer splits it; none if it is not
        UTF-8."""
        return tuple(self._tokenizer.tokenize_bytes(text)) if is_text(text) else ()

    def shorten(self, path: Sequence[int]) -> Way:
        """Return fewer tokens of the same text, if the tokenizer has some."""
        whole: list[int] = []
        run: list[int] = []
        for token_id in (*path, None):
            if token_id is not None and token_id not in self.special_ids:
                run.append(token_id)
                continue
            text = b"".join(self.texts[each] for each in run)
            split = self.tokenize(text)
            whole += split if 0 < len(split) < len(run) else run
            whole += [] if token_id is None else [token_id]
            run = []
        return tuple(whole)


@lru_cache(256)
def _read_literals(tokens: EndTokens, grammar: str) -> tuple[Way, ...]:
    texts: dict[str, None] = {}
    for lark in re.findall(r'"lark_grammar":\s*"((?:[^"\\]|\\.)*)"', grammar):
        for literal in _LITERAL.findall(_unescape(lark)):
            texts[_unescape(literal)] = None
    found = (tokens.tokenize(text.encode()) for text in list(texts)[:_MAX_LITERALS])
    return tuple(literal for literal in found if len(literal) > 1)


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), text)


def find_way(
    matcher: LLMatcher,
    tokens: EndTokens,
    literals: Sequence[Way],
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
    for path in _Search(tokens, literals, max_steps, banned).iter_paths(matcher):
        shorter = tokens.shorten(path)
        if not banned.isdisjoint(shorter):
            shorter = path
        way = shorter if len(shorter) < len(path) and is_way(matcher, shorter) else path
        if best is None or len(way) < len(best):
            best = way
        if len(best) <= enough:
            break
    return best


def adapt_way(matcher: LLMatcher, tokens: EndTokens, way: Way, token_id: int) -> Way | None:
    """Return a way that is much like `way`, which led to an end before `token_id`; None if there is
    none. `matcher` stands behind the token. It takes a tenth of a search, and usually succeeds: the
    token was a part of the way's text, or stands beside it as in a string, or the way goes on
    behind a part of it, perhaps after one more token that closes something."""
    text, whole = tokens.spell((token_id,)), tokens.spell(way)
    rest = tokens.tokenize(whole[len(text) :]) if whole.startswith(text) else ()
    if rest and is_way(matcher, rest):
        return rest
    if (end := find_suffix(matcher, way)) is not None:
        return end
    for prefix in tokens.order_of_closers:
        if matcher.validate_tokens([prefix]) != 1:
            continue
        copy = matcher.deep_copy()
        copy.consume_token(prefix)
        if is_accepting(copy):
            return (prefix,)
        if (end := find_suffix(copy, way)) is not None:
            return (prefix, *end)
    return None


def find_suffix(matcher: LLMatcher, way: Way) -> Way | None:
    """Return the longest end of a way that leads to an end from where `matcher` stands."""
    for start in range(len(way)):
        suffix = way[start:]
        if matcher.validate_tokens([suffix[0]]) == 1 and is_way(matcher, suffix):
            return suffix
    return None


def is_way(matcher: LLMatcher, way: Way) -> bool:
    """Return whether tokens lead from where `matcher` stands to an accepted end."""
    copy = matcher.deep_copy()
    return copy.try_consume_tokens(list(way)) == len(way) and is_accepting(copy)


def is_accepting(matcher: LLMatcher) -> bool:
    return not matcher.is_error() and bool(matcher.is_accepting())


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
        literals: Sequence[Way],
        max_steps: int,
        banned: frozenset[int],
    ) -> None:
        self._tokens = tokens
        self._literals = [each for each in literals if banned.isdisjoint(each)]
        self._banned = banned
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
        self._known: set[tuple[int, bytes]] = set()
        """How far places are, and their masks."""

    def iter_paths(self, matcher: LLMatcher) -> Iterator[Way]:
        """Yield the paths to accepted ends that are found."""
        root = matcher.deep_copy()
        path = _follow_forced(root, ())
        if path is None:
            return
        if is_accepting(root):
            yield path
            return
        self._push(0, _Node(root, path, root.compute_bitmask()))
        while self._waiting and self._steps_left > 0:
            if self._steps_left <= self._settles_at:
                self._settle()
            _, cost, _, node = heapq.heappop(self._waiting)
            if node.next_child < 0:
                node.children, node.next_child = self._list_children(node.mask), 0
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
        node.children = self._list_children(node.mask)
        self._seen.difference_update(self._tokens.spell((*node.path, *c)) for c in node.children)
        self._push(0, node)

    def _list_children(self, mask: bytes) -> Sequence[Way]:
        literals = [each for each in self._literals if _is_set(mask, each[0])]
        ids = _list_few(mask)
        if ids:
            ids = sorted(set(ids).difference(self._tokens.end_ids), key=self._tokens.get_rank)
        else:
            ids = [id for id in self._tokens.order if _is_set(mask, id)]
        ids = [id for id in ids if id not in self._banned]
        return [*literals, *((id,) for id in ids)]

    def _try(self, node: _Node, child: Way, cost: int) -> Iterator[Way]:
        """Follow a child. Yield the path if it leads to an end."""
        text = self._tokens.spell((*node.path, *child))
        if text in self._seen:
            return
        self._seen.add(text)
        self._steps_left -= 1
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
        is_new = (num_forced, mask) not in self._known
        self._known.add((num_forced, mask))
        num_new = is_new + (0 if is_forced else node.num_new)
        there = _Node(
            matcher, path, mask, loops=loops, num_forced=num_forced, num_new=num_new,
            phase=node.phase,
        )  # fmt: skip
        self._note_progress(there)
        cost += (not is_forced) + (0 if is_new or loops else _KNOWN)
        self._push(cost, there)
        if loops == _FEW_LOOPS:
            self._repeat(there, child, cost)

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
    ids: list[int] = []
    for match in _NOT_ZERO.finditer(mask):
        place = match.start()
        ids += (place * 8 + bit for bit in range(8) if mask[place] >> bit & 1)
        if len(ids) > _FEW:
            return []
    return ids


def _is_set(mask: bytes, token_id: int) -> bool:
    return bool(mask[token_id >> 3] >> (token_id & 7) & 1)
