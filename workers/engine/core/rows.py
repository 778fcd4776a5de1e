"""The rows of a step's logits: one for each sequence that the step samples, and one for each token
of its draft. No torch."""

from collections.abc import Iterable
from typing import NamedTuple

from workers.engine.core.choice import GrammarState
from workers.engine.core.sequence import Sequence


class Row(NamedTuple):
    """A row of a step's logits, from which a token is sampled."""

    sequence: Sequence
    num_drafted: int
    """How many drafted tokens stand before the token."""
    grammar: GrammarState | None
    """The state before the token, if the sequence has a grammar."""


def lay_rows(sequences: Iterable[Sequence]) -> list[Row]:
    """Return the rows of a step, given the sequence of each. Rows of one sequence follow each
    other."""
    rows: list[Row] = []
    previous, index = None, 0
    for sequence in sequences:
        if sequence is not previous:
            previous, index = sequence, 0
            rows.append(Row(sequence, 0, sequence.choice.grammar))
            continue
        rows.append(Row(sequence, sequence.draft.rows[index + 1], sequence.draft.grammars[index]))
        index += 1
    return rows
