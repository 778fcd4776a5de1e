"""Random classes and small patterns around them, spelt for ECMA-262 and for Python's `re`, and
texts that tell them apart."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

ALPHABET = (
    '"\\\x00\x01\x08\t\n\x0b\r\x1f\x7f abkKZ09_-/.&[^]{}\xe9\x85\xa0\u017f'
    "\u2028\u2029\ufeff\u3000\uffff\U0001f600\U0010ffff\ud7ff\ue000"
)
"""The last two are next to the surrogates."""
_SHORTHANDS = {
    "d": "0-9", "w": "0-9A-Z_a-z",
    "s": "\t-\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff",
}  # fmt: skip
"""ECMA-262, 22.2.2.9 and 12.2, as they stand in a class of Python's."""
_PROPERTIES = (
    "\\p{L}",
    "\\P{L}",
    "\\p{P}",
    "\\P{Cc}",
    "\\P{ASCII}",
    "\\p{Nd}",
)
_SETS = (
    "[^\"]",
    "[^\"\\n]", "[^\\\\/:*?\"<>|]", "[^ -~]", "[\\x00-\\x1f]", "[\\x00-\\x7f]", "[^\\p{P}]",
    "[a-z--b]", "[--/]", "[a&&b]", "[^]", "[\\s\\S]", "[\\0\\cJ]", "[^\\\\]", "[^\\x00-\\x1f\"]",
    "[\\ud83d\\ude00]", "(?:[\\x00-\\x1f]|[ab])", "(?:[^\"]|\\x01)", "[^\\s\"]", "[^\"\\r\\n]",
)  # fmt: skip


class Pattern(NamedTuple):
    """One regular expression in both spellings."""

    ecma: str
    python: str | None
    """None if Python lacks a part of it."""


def _joined(parts: Sequence[Pattern], separator: str = "") -> Pattern:
    pythons = [part.python for part in parts]
    known = [python for python in pythons if python is not None]
    python = separator.join(known) if len(known) == len(pythons) else None
    return Pattern(separator.join(part.ecma for part in parts), python)


def _around(before: str, part: Pattern, after: str) -> Pattern:
    python = None if part.python is None else before + part.python + after
    return Pattern(before + part.ecma + after, python)


def _python(point: int) -> str:
    return f"\\U{point:08x}"


def random_pattern(rng: random.Random) -> Pattern:
    """Mostly one class or two, repeated, between anchors; sometimes with look-around."""
    return _Maker(rng).pattern()


class _Maker:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def pattern(self) -> Pattern:
        rng = self._rng
        if rng.random() < 0.1:
            whole = Pattern("^", "^"), Pattern(rng.choice(_SETS) + rng.choice(("", "*", "+")), None)
            return _joined((*whole, Pattern("$", "\\Z")))
        body = self._options()
        start = Pattern("^", "^") if rng.random() < 0.8 else Pattern("", "")
        looks = [self._look() for _ in range(rng.choice((0, 0, 0, 0, 0, 1, 1, 2)))]
        end = Pattern("$", "\\Z") if rng.random() < 0.8 else Pattern("", "")
        return _joined((start, *looks, _around("(?:", body, ")"), end))

    def _look(self) -> Pattern:
        anything = Pattern(".*", "[^\\n\\r\\u2028\\u2029]*")
        inside = [anything] if self._rng.random() < 0.4 else []
        end = [Pattern("$", "\\Z")] if self._rng.random() < 0.3 else []
        body = _joined((*inside, self._sequence(), *end))
        return _around(self._rng.choice(("(?=", "(?!")), body, ")")

    def _options(self) -> Pattern:
        options = [self._sequence() for _ in range(self._rng.choice((1, 1, 1, 2)))]
        if self._rng.random() < 0.1:
            options.append(_joined((self._look(), self._sequence())))
        return _joined(options, "|")

    def _sequence(self) -> Pattern:
        pieces = [self._repeated() for _ in range(self._rng.choice((1, 1, 2, 3)))]
        if self._rng.random() < 0.06:
            pieces.insert(self._rng.randrange(len(pieces) + 1), Pattern("\\b", "\\b"))
        if self._rng.random() < 0.04:
            pieces.append(_around(self._rng.choice(("(?<=", "(?<!")), self._class(), ")"))
        return _joined(pieces)

    def _repeated(self) -> Pattern:
        rng = self._rng
        atom = self._class() if rng.random() < 0.8 else self._single()
        if rng.random() < 0.1:
            atom = _around("(?:", _joined((atom, self._class()), rng.choice(("", "|"))), ")")
        return _around("", atom, rng.choice(("", "", "*", "+", "?", "{2}", "{1,3}", "{0,2}?")))

    def _single(self) -> Pattern:
        if self._rng.random() < 0.3:
            return Pattern(".", "[^\\n\\r\\u2028\\u2029]")
        point = ord(self._rng.choice(ALPHABET))
        return Pattern(self._spelt(point), _python(point))

    def _class(self) -> Pattern:
        rng = self._rng
        if rng.random() < 0.1:
            letter = rng.choice("dwsDWS")
            negation = "^" if letter.isupper() else ""
            return Pattern(f"\\{letter}", f"[{negation}{_SHORTHANDS[letter.lower()]}]")
        negated = rng.random() < 0.5
        items = [self._item() for _ in range(rng.choice((1, 1, 2, 3, 4)))]
        return _around("[^" if negated else "[", _joined(items), "]")

    def _item(self) -> Pattern:
        rng, kind = self._rng, self._rng.random()
        if kind < 0.15:
            letter = rng.choice("dws")
            return Pattern(f"\\{letter}", _SHORTHANDS[letter])
        if kind < 0.2:
            known = rng.random() < 0.9
            return Pattern(rng.choice(_PROPERTIES) if known else "\\p{Script=Greek}", None)
        low = ord(rng.choice(ALPHABET))
        if kind < 0.55:
            return Pattern(self._spelt(low, in_class=True), _python(low))
        high = ord(rng.choice(ALPHABET))
        low, high = min(low, high), max(low, high)
        if kind < 0.75:  # all control characters, or all but a few
            low, high = rng.choice((0, 0, 1)), rng.choice((0x1F, 0x1F, 0x21, 0x7F, 0x1E))
        ecma = f"{self._spelt(low, in_class=True)}-{self._spelt(high, in_class=True)}"
        return Pattern(ecma, f"{_python(low)}-{_python(high)}")

    def _spelt(self, point: int, *, in_class: bool = False) -> str:
        """One character in one of the ways of ECMA-262."""
        ways: list[Callable[[], str]] = [lambda: f"\\u{{{point:x}}}"]
        if point < 0x100:
            ways.append(lambda: f"\\x{point:02x}")
        if point < 0x10000:
            ways.append(lambda: f"\\u{point:04x}")
        else:
            encoded = chr(point).encode("utf-16-be").hex()
            ways.append(lambda: f"\\u{encoded[:4]}\\u{encoded[4:]}")
        if 1 <= point <= 26:
            ways.append(lambda: f"\\c{chr(point + 64)}")
        if point > 0x20 and chr(point) not in "^$\\.*+?()[]{}|/-":
            ways.append(lambda: chr(point))
        elif point >= 0x20 and (in_class or chr(point) != "-"):
            ways.append(lambda: "\\" + chr(point) if point > 0x20 else " ")
        return self._rng.choice(ways)()


def random_text(rng: random.Random) -> str:
    length = rng.choice((0, 1, 1, 1, 2, 2, 3, 4))
    if rng.random() < 0.2:
        return rng.choice(ALPHABET) * length
    letters = ALPHABET if rng.random() < 0.7 else '"\\ab\n\x1f'
    return "".join(rng.choice(letters) for _ in range(length))
