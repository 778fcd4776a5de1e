"""Reads the turns of a session's trajectory as lines with receipts: each with its whole prompt, the
tokens of the turns before it and its own."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from completions.batches.input_lines import split_lines

Line = Mapping[str, Any]


def is_trajectory(file: Path) -> bool:
    """Return whether a file is a session's trajectory, by its first line."""
    try:
        with file.open("rb") as lines:
            first = json.loads(next(iter(split_lines(lines)), b"null"))
    except (OSError, ValueError):
        return False
    return type(first) is dict and "turn" in first and "session" in first


def read_turns(file: Path) -> Iterator[tuple[Line, list[int]]]:
    """Yield the turns with receipts and their prompts. Raises ValueError, TypeError and LookupError
    for another file."""
    with file.open("rb") as content:
        lines = {line["turn"]: line for line in map(json.loads, split_lines(content))}
    for line in lines.values():
        if line["receipt"] is not None:
            yield line, _join_prompt(line, lines)


def make_constraint(grammar: str) -> Line:
    """Make the field `grammar` of a request from the text that a worker had."""
    grammars = [
        {name: value for name, value in each.items() if value is not None}
        for each in json.loads(grammar)["grammars"]
    ]
    return {"type": "llguidance", "value": {"grammars": grammars}}


def _join_prompt(line: Line, lines: Mapping[str, Line]) -> list[int]:
    """Return all tokens before a turn's answers."""
    parts: list[Sequence[int]] = []
    while True:
        parts.append(line["given"]["token_ids"])
        if line["rebased"] or line["after"] is None:
            break
        turn, _, index = line["after"].rpartition(":")
        line = lines[turn]
        parts.append(_get_answer(line, int(index)))
        if len(parts) > 2 * len(lines):
            raise ValueError("its turns come after one another in a circle")
    return [id for part in reversed(parts) for id in part]


def _get_answer(line: Line, index: int) -> Sequence[int]:
    """Return the tokens of a choice: the receipt's, so that only a changed turn is at fault."""
    receipt = line["receipt"]
    answers = [each["token_ids"] for each in line["choices"]]
    ids: Sequence[int] = (answers if receipt is None else receipt["output_ids"])[index]
    return ids
