"""A prompt's text that knows which of its characters the chat template wrote.

A template mixes its own texts with those of messages, and only its own may become special tokens.
Every operation that is not defined here returns a plain text: one that the template did not write.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Self, SupportsIndex

OWN, FOREIGN = "1", "0"
"""Characters of a mask: written by the template, or by anyone else."""


class PromptText(str):
    """A text with a mask: one character of :data:`OWN` or :data:`FOREIGN` for each of its own."""

    mask: str

    def __new__(cls, text: str, mask: str | None = None) -> Self:
        self = super().__new__(cls, text)
        self.mask = FOREIGN * len(text) if mask is None else mask
        return self

    def __str__(self) -> str:
        return self  # str() would return a plain text

    def __add__(self, other: str) -> "PromptText":
        return concatenate((self, other)) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> "PromptText":
        return concatenate((other, self)) if isinstance(other, str) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> "PromptText":
        return PromptText(super().__mul__(count), self.mask * count)

    __rmul__ = __mul__

    def __getitem__(self, key: SupportsIndex | slice) -> "PromptText":
        return PromptText(super().__getitem__(key), self.mask[key])

    def lstrip(self, chars: str | None = None) -> "PromptText":
        return self[len(self) - len(super().lstrip(chars)) :]

    def rstrip(self, chars: str | None = None) -> "PromptText":
        return self[: len(super().rstrip(chars))]

    def strip(self, chars: str | None = None) -> "PromptText":
        return self.lstrip(chars).rstrip(chars)

    def removeprefix(self, prefix: str) -> "PromptText":
        begin = len(prefix) if self.startswith(prefix) else 0
        return self[begin:]

    def removesuffix(self, suffix: str) -> "PromptText":
        end = len(self) - (len(suffix) if self.endswith(suffix) else 0)
        return self[:end]

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Any]:
        parts = super().split(sep, maxsplit)
        if sep is None:
            return parts
        pieces, at = [], 0
        for part in parts:
            pieces.append(self[at : at + len(part)])
            at += len(part) + len(sep)
        return pieces

    def join(self, items: Iterable[str]) -> "PromptText":
        return join(self, items)

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> Any:
        if not old:
            return super().replace(old, new, count)
        return join(new, self.split(old, count))

    def lower(self) -> Any:
        return self._convert(str.lower)

    def upper(self) -> Any:
        return self._convert(str.upper)

    def title(self) -> Any:
        return self._convert(str.title)

    def capitalize(self) -> Any:
        return self._convert(str.capitalize)

    def _convert(self, convert: Callable[[str], str]) -> str:
        """Return the text in another case, which may have more characters."""
        text = convert(self)
        return PromptText(text, self.mask) if len(text) == len(self) else text


@lru_cache(4096)
def trust(text: str) -> PromptText:
    """Return a text that the template writes itself."""
    return PromptText(text, OWN * len(text))


def concatenate(parts: Iterable[str]) -> PromptText:
    """Return the texts as one, with the masks of those that have one."""
    parts = list(parts)
    masks = (part.mask if isinstance(part, PromptText) else FOREIGN * len(part) for part in parts)
    return PromptText("".join(parts), "".join(masks))


def join(separator: str, items: Iterable[str]) -> PromptText:
    """Return the texts as one, with the separator between them."""
    return concatenate([part for item in items for part in (separator, item)][1:])
