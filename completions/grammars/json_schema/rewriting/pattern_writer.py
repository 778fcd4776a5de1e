"""An automaton as a pattern, by the elimination of its states one by one."""

from completions.grammars import code_points
from completions.grammars.json_schema.rewriting.automata import (
    LAST,
    Automaton,
    TooManyStatesError,
)
from completions.grammars.patterns.rust import write_class

MAX_PATTERN = 6_000
"""Characters of a pattern."""
_START, _STOP = -1, -2
Paths = dict[int, dict[int, list[str]]]
"""For each state and each next state, the alternatives that lead there."""


def write_pattern(automaton: Automaton) -> str:
    """Return a pattern that matches exactly the texts of the automaton. Raises TooManyStatesError.

    An automaton without texts gives a pattern that nothing matches.
    """
    live = _find_live(automaton)
    if 0 not in live:
        return "[^\\s\\S]"
    paths: Paths = {state: _collect_edges(automaton, state, live) for state in live}
    paths[_START] = {0: [""]}
    for state in live:
        if automaton.final[state]:
            paths[state][_STOP] = [""]
    waiting = set(live)
    while waiting:
        incoming = dict.fromkeys(waiting, 0)
        for source, targets in paths.items():
            for target in targets:
                if target in incoming and target != source:
                    incoming[target] += _compute_weight(targets[target])
        cheapest = min(waiting, key=lambda state: _compute_cost(paths, state, incoming[state]))
        waiting.remove(cheapest)
        _eliminate(paths, cheapest)
    return f"^{_group(_alternate(paths[_START][_STOP]))}$"


def _compute_cost(paths: Paths, state: int, incoming: int) -> tuple[int, int]:
    targets = paths[state]
    loop = _compute_weight(targets.get(state, []))
    outgoing = sum(_compute_weight(texts) for target, texts in targets.items() if target != state)
    outs, size = sum(target != state for target in targets), incoming + outgoing + loop
    return size * max(outs, 1), state


def _compute_weight(texts: list[str]) -> int:
    return sum(len(text) + 1 for text in texts)


def _find_live(automaton: Automaton) -> list[int]:
    """Return the states from which a text may end."""
    before: dict[int, set[int]] = {}
    for state, row in enumerate(automaton.rows):
        for target in row:
            before.setdefault(target, set()).add(state)
    states = {state for state, final in enumerate(automaton.final) if final}
    stack = list(states)
    while stack:
        fresh = before.get(stack.pop(), set()) - states
        states |= fresh
        stack += fresh
    return sorted(states)


def _collect_edges(automaton: Automaton, state: int, live: list[int]) -> dict[int, list[str]]:
    intervals: dict[int, list[tuple[int, int]]] = {}
    ends = [*(cut - 1 for cut in automaton.cuts[1:]), LAST]
    for low, high, target in zip(automaton.cuts, ends, automaton.rows[state], strict=True):
        if target not in live:
            continue
        runs = intervals.setdefault(target, [])
        if runs and runs[-1][1] == low - 1:
            low = runs.pop()[0]
        runs.append((low, high))
    return {target: [write_class(code_points.merge(runs))] for target, runs in intervals.items()}


def _eliminate(paths: Paths, state: int) -> None:
    """Replace every way through a state by one that bypasses it."""
    onward = paths.pop(state)
    loop = onward.pop(state, None)
    middle = f"{_group(_alternate(loop))}*" if loop else ""
    size = 0
    for targets in paths.values():
        before = targets.pop(state, None)
        if before is None:
            continue
        head = _factor(_alternate(before)) + middle
        for target, after in onward.items():
            targets.setdefault(target, []).append(head + _factor(_alternate(after)))
        size += sum(_compute_weight(texts) for texts in targets.values())
        if size > MAX_PATTERN:
            raise TooManyStatesError


def _alternate(texts: list[str]) -> str:
    if "" in texts and len(texts) > 1:
        return f"{_group('|'.join(text for text in texts if text))}?"
    return texts[0] if len(texts) == 1 else "|".join(texts)


def _factor(text: str) -> str:
    """Return a pattern that can be concatenated with others."""
    return _group(text) if _has_alternatives(text) else text


def _group(text: str) -> str:
    single = len(text) == 1 or (len(text) == 2 and text[0] == "\\")
    return text if single or _is_class(text) else f"(?:{text})"


def _is_class(text: str) -> bool:
    if not text.startswith("[") or not text.endswith("]"):
        return False
    inside = text[1:-1].replace("\\\\", "").replace("\\]", "")
    return "]" not in inside


def _has_alternatives(text: str) -> bool:
    depth, escaped, in_class = 0, False, False
    for character in text:
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif in_class:
            in_class = character != "]"
        elif character == "[":
            in_class = True
        elif character in "()":
            depth += 1 if character == "(" else -1
        elif character == "|" and not depth:
            return True
    return False
