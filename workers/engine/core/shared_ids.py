"""The tokens of a sequence, of which the first are those of others too."""

from collections.abc import Iterable, Sequence
from typing import overload


class SharedIds(Sequence[int]):
    """A list that begins with tokens which it does not copy: a prompt with one of many
    continuations."""

    __slots__ = ("_own", "shared")

    def __init__(self, shared: Sequence[int], own: Iterable[int] = ()) -> None:
        self.shared = shared
        self._own = list(own)

    def __len__(self) -> int:
        return len(self.shared) + len(self._own)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        places = range(len(self))[index]
        num_shared = len(self.shared)
        if isinstance(places, int):
            is_own = places >= num_shared
            return self._own[places - num_shared] if is_own else self.shared[places]
        if places.step != 1:
            return [self[place] for place in places]
        first, end = places.start - num_shared, places.stop - num_shared
        own = self._own[max(0, first) : max(0, end)]
        return [*self.shared[places.start : places.stop], *own]

    def append(self, token_id: int) -> None:
        self._own.append(token_id)

    def pop(self) -> int:
        return self._own.pop()

    def extend(self, token_ids: Iterable[int]) -> None:
        self._own += token_ids

    def copy(self) -> list[int]:
        return [*self.shared, *self._own]


TokenIds = list[int] | SharedIds
