"""The fewest and the most tokens that a text of a grammar can have, where they can be found.

An automaton that accepts all texts of the grammar is walked with the model's tokens. Its shortest
path is a lower bound; if the engine's matcher accepts that path, it is the minimum.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

import orjson
from llguidance import LLMatcher
from tokenizers import Tokenizer

from completions.contract.llguidance_limits import VALIDATION_LIMITS
from completions.contract.token_bytes import TokenBytes
from completions.grammars import tokens
from completions.grammars.lengths.graph import LEAVING, Graph
from completions.grammars.lengths.schemas import SchemaGraph
from completions.grammars.tokens import TokenSource
from completions.regular.code_points import Ranges
from completions.regular.nfa import TooLargeError

MAX_VISITS = 200_000
"""The most pairs of a token prefix and a state in one search: about two seconds of work."""
MAX_TEXTS = 500
"""The most text prefixes tried for a grammar other than a JSON Schema."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Each is None where it is unknown; `most` is also None where texts have no upper bound."""

    min_tokens: int | None
    """The fewest tokens of a whole text."""
    max_tokens: int | None
    """The most tokens of a text."""
    at_least: int = 1
    """No text has fewer tokens than this."""


UNKNOWN = Bounds(None, None)


@lru_cache(1024)
def find_bounds(grammar: str, source: TokenSource) -> Bounds:
    """Return the bounds of an llguidance grammar that was validated. Takes seconds at worst."""
    automaton = _build_automaton(grammar)
    if automaton is None:
        return UNKNOWN
    graph, start, end = automaton
    max_bytes = graph.find_longest(start)
    search = _Search(graph, start, end, _load_vocabulary(source))
    path = search.find_path()
    if path is None:
        return Bounds(None, max_bytes, max(1, search.length))
    exact = _accepts(grammar, path, source)
    return Bounds(len(path) if exact else None, max_bytes, max(1, len(path)))


def _accepts(grammar: str, path: Sequence[int], source: TokenSource) -> bool:
    matcher = LLMatcher(tokens.load(source), grammar, log_level=0, limits=VALIDATION_LIMITS)
    taken = matcher.try_consume_tokens(list(path))
    return taken == len(path) and not matcher.is_error() and bool(matcher.is_accepting())


def _build_automaton(grammar: str) -> tuple[Graph, int, int] | None:
    parts = orjson.loads(grammar).get("grammars") or [] if grammar.startswith("{") else []
    if len(parts) == 1 and isinstance(schema := parts[0].get("json_schema"), dict):
        try:
            built = SchemaGraph(schema)
        except (TooLargeError, RecursionError):
            return None
        return built.graph, built.start, built.end
    return _enumerate(grammar)


def _enumerate(grammar: str) -> tuple[Graph, int, int] | None:
    """Return the automaton of a grammar with few texts; None for one with many."""
    matcher = LLMatcher(tokens.load(None), grammar, log_level=0, limits=VALIDATION_LIMITS)
    graph = Graph()
    start, end = graph.add_state(), graph.add_state()
    waiting = [(start, matcher)]
    while len(graph.steps) <= MAX_TEXTS:
        if not waiting:
            return graph, start, end
        state, node = waiting.pop()
        mask = node.compute_bitmask() if not node.is_stopped() else b""
        if node.is_error():
            return None
        if node.is_accepting():
            graph.add_jump(state, end)
        if node.is_stopped():
            continue
        for byte in range(256):
            if mask[byte // 8] >> byte % 8 & 1:
                there = node.deep_copy()
                there.consume_token(byte)
                waiting.append((graph.add_step(state, ((byte, byte),)), there))
    return None


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    texts: Sequence[bytes]
    """The bytes of tokens, sorted."""
    ids: Sequence[int]
    leaving: Sequence[Sequence[int]]
    """By kind of loop: how many of the tokens before each index have a byte that leaves the
    loop."""


@lru_cache(4)
def _load_vocabulary(source: TokenSource) -> _Vocabulary:
    read = TokenBytes(Tokenizer.from_file(source.tokenizer_file))
    table = read.make_table(source.size)
    left_out = read.special_ids | set(source.eos_token_ids)
    pairs = sorted((text, id) for id, text in enumerate(table) if text and id not in left_out)
    leaving = [
        list(accumulate((not set(bytes_).isdisjoint(text) for text, _ in pairs), initial=0))
        for bytes_ in LEAVING
    ]
    return _Vocabulary([text for text, _ in pairs], [id for _, id in pairs], leaving)


class _Search:
    """A breadth-first search for a path through an automaton with the fewest tokens."""

    def __init__(self, graph: Graph, start: int, end: int, vocabulary: _Vocabulary) -> None:
        self._graph = graph
        self._end = end
        self._vocabulary = vocabulary
        self._closures: dict[int, list[int]] = {}
        self._visits = 0
        self._came: dict[int, tuple[int, int] | None] = dict.fromkeys(self._find_closure(start))
        """For each state that whole tokens lead to: the state before and the token."""
        self.length = 0
        """No path has fewer tokens."""

    def find_path(self) -> list[int] | None:
        """Return the token ids of a shortest path; None if the search takes too long."""
        frontier = list(self._came)
        while frontier:
            if self._end in self._came:
                return _trace_path(self._came, self._end)
            reached = self._expand(frontier)
            if reached is None:
                return None
            self._came |= reached
            self.length += 1
            frontier = list(reached)
        return None

    def _expand(self, frontier: Sequence[int]) -> dict[int, tuple[int, int] | None] | None:
        """New states that one more token leads to; None if the search takes too long."""
        reached: dict[int, tuple[int, int] | None] = {}
        seen: set[tuple[int, int, int]] = set()
        # A token prefix is a range of the sorted tokens and a length.
        waiting = [(0, len(self._vocabulary.texts), 0, state, state) for state in frontier]
        while waiting:
            low, high, depth, state, origin = waiting.pop()
            self._visits += 1
            if self._visits > MAX_VISITS:
                return None
            if self._can_stay(low, high, state):
                if state not in self._came:
                    reached.setdefault(state, (origin, self._vocabulary.ids[low]))
                continue
            for first, last, to in self._iter_steps(low, high, depth, state):
                if (first, depth, to) in seen:
                    continue
                seen.add((first, depth, to))
                is_token = len(self._vocabulary.texts[first]) == depth + 1
                for after in self._find_closure(to):
                    if is_token and after not in self._came:
                        reached.setdefault(after, (origin, self._vocabulary.ids[first]))
                    if self._graph.steps[after]:
                        waiting.append((first, last, depth + 1, after, origin))
        return reached

    def _can_stay(self, low: int, high: int, state: int) -> bool:
        """Return whether the state is a loop that none of these tokens leaves."""
        kind = self._graph.loops.get(state)
        if kind is None:
            return False
        leaving = self._vocabulary.leaving[kind]
        return leaving[high] == leaving[low]

    def _iter_steps(
        self, low: int, high: int, depth: int, state: int
    ) -> Iterator[tuple[int, int, int]]:
        """Yield ranges of tokens whose next byte the state accepts, each with the next state."""
        for ranges, to in self._graph.steps[state]:
            for first, last in _iter_next(self._vocabulary.texts, low, high, depth, ranges):
                yield first, last, to

    def _find_closure(self, state: int) -> list[int]:
        if state not in self._closures:
            self._closures[state] = list(self._graph.find_closure((state,)))
        return self._closures[state]


def _iter_next(
    texts: Sequence[bytes], low: int, high: int, depth: int, ranges: Ranges
) -> Iterator[tuple[int, int]]:
    """Yield the ranges of tokens whose next byte is one of these."""

    def byte_at(text: bytes) -> int:
        return text[depth]

    while low < high and len(texts[low]) == depth:
        low += 1  # tokens that end here
    for least, greatest in ranges:
        low = bisect_left(texts, least, low, high, key=byte_at)
        while low < high and texts[low][depth] <= greatest:
            last = bisect_left(texts, texts[low][depth] + 1, low, high, key=byte_at)
            yield low, last
            low = last


def _trace_path(came: Mapping[int, tuple[int, int] | None], state: int) -> list[int]:
    path = []
    while (step := came[state]) is not None:
        state, token_id = step
        path.append(token_id)
    return path[::-1]
