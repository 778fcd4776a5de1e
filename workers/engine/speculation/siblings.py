"""Earlier outputs of sequences with the same constraint, within one organization."""

from collections import OrderedDict, deque
from collections.abc import Sequence

from workers.engine.speculation.ngrams import LONGEST_MATCH, NgramIndex

_MAX_FAMILIES = 32
_MAX_TOKENS = 4096
"""The tokens kept of one family's outputs. All families take at most about 50 MB."""

BORDER = -1
"""Stands between two outputs in an index. No token has this id."""


class Family:
    """The last outputs of the sequences with one key."""

    def __init__(self) -> None:
        self.index = NgramIndex()
        self._outputs: deque[list[int]] = deque()

    def add(self, output: list[int]) -> None:
        output = [BORDER, *output[:_MAX_TOKENS]]
        self._outputs.append(output)
        self.index.extend(output)
        if len(self.index.token_ids) > 2 * _MAX_TOKENS:
            self._forget()

    def _forget(self) -> None:
        """Keep the last outputs, of ``_MAX_TOKENS`` in all, in a new index. Each token is indexed
        twice at most."""
        num_tokens = sum(map(len, self._outputs))
        while num_tokens > _MAX_TOKENS and len(self._outputs) > 1:
            num_tokens -= len(self._outputs.popleft())
        self.index = NgramIndex()
        for output in self._outputs:
            self.index.extend(output)


class Siblings:
    """Families by key; the least recently used are dropped.

    A key must differ between organizations and between cache salts: one client's output must not
    change another client's response time.
    """

    def __init__(self) -> None:
        self._families: OrderedDict[bytes, Family] = OrderedDict()

    def find(self, key: bytes) -> Family | None:
        """Return the outputs under ``key``, or None if there are none."""
        family = self._families.get(key)
        if family is not None:
            self._families.move_to_end(key)
        return family

    def add(self, key: bytes, token_ids: Sequence[int], prompt_len: int) -> None:
        """Add the output of a finished sequence, with the end of its prompt."""
        family = self._families.setdefault(key, Family())
        self._families.move_to_end(key)
        family.add(list(token_ids[max(0, prompt_len - LONGEST_MATCH) :]))
        if len(self._families) > _MAX_FAMILIES:
            self._families.popitem(last=False)
