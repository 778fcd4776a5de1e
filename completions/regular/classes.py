"""Sets of characters that ECMA-262 names: escapes, properties, letters in either case."""

import re
from functools import lru_cache

from completions.regular import code_points
from completions.regular.code_points import Ranges
from completions.regular.syntax import Characters

DIGITS: Ranges = ((0x30, 0x39),)
WORD: Ranges = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
# ECMA-262, 12.2 and 12.3: WhiteSpace and LineTerminator.
SPACE: Ranges = (
    (0x09, 0x0D),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)
LINE_ENDS: Ranges = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
DOT = code_points.invert(LINE_ENDS)
CONTROLS = {"n": 0x0A, "r": 0x0D, "t": 0x09, "f": 0x0C, "v": 0x0B}
# ECMA-262, table 67, and Unicode's PropertyValueAliases.txt: the long names of general categories.
_LONG_NAMES = {
    "Letter": "L",
    "Cased_Letter": "LC",
    "Uppercase_Letter": "Lu",
    "Lowercase_Letter": "Ll",
    "Titlecase_Letter": "Lt",
    "Modifier_Letter": "Lm",
    "Other_Letter": "Lo",
    "Mark": "M",
    "Combining_Mark": "M",
    "Nonspacing_Mark": "Mn",
    "Spacing_Mark": "Mc",
    "Enclosing_Mark": "Me",
    "Number": "N",
    "Decimal_Number": "Nd",
    "digit": "Nd",
    "Letter_Number": "Nl",
    "Other_Number": "No",
    "Punctuation": "P",
    "punct": "P",
    "Connector_Punctuation": "Pc",
    "Dash_Punctuation": "Pd",
    "Open_Punctuation": "Ps",
    "Close_Punctuation": "Pe",
    "Initial_Punctuation": "Pi",
    "Final_Punctuation": "Pf",
    "Other_Punctuation": "Po",
    "Symbol": "S",
    "Math_Symbol": "Sm",
    "Currency_Symbol": "Sc",
    "Modifier_Symbol": "Sk",
    "Other_Symbol": "So",
    "Separator": "Z",
    "Space_Separator": "Zs",
    "Line_Separator": "Zl",
    "Paragraph_Separator": "Zp",
    "Other": "C",
    "Control": "Cc",
    "cntrl": "Cc",
    "Format": "Cf",
    "Surrogate": "Cs",
    "Private_Use": "Co",
    "Unassigned": "Cn",
}
_CATEGORY = re.compile(r"(?:(?:gc|General_Category)=)?(\w+)")
_CASED_END = 0x1E944
"""No character from here on has another case."""


def make_shorthands(space: Ranges) -> dict[str, Characters]:
    r"""Return the sets that \d, \w and \s stand for, and \D, \W and \S, in a dialect with this
    white space."""
    sets = {"d": DIGITS, "w": WORD, "s": space}
    negated = {letter.upper(): code_points.invert(ranges) for letter, ranges in sets.items()}
    return {letter: Characters(ranges) for letter, ranges in (sets | negated).items()}


def load_category(name: str) -> Ranges | None:
    """Return the characters of a property such as Lu, Letter or gc=Lu; None if it is no general
    category."""
    match = _CATEGORY.fullmatch(name)
    if match is None:
        return None
    short = _LONG_NAMES.get(match[1], match[1])
    if short in ("Any", "ASCII"):
        return code_points.ALL if short == "Any" else ((0, 0x7F),)
    if short == "LC":
        cased = (code_points.load_category(each) for each in ("Lu", "Ll", "Lt"))
        return code_points.merge(span for spans in cased for span in spans)
    if short == "Cs":
        return ()
    return code_points.load_category(short) if len(short) <= 2 else None


def fold(ranges: Ranges) -> Ranges:
    """Return the characters, and those that differ from them in case only (ECMA-262,
    22.2.2.7.3)."""
    more = list(ranges)
    for low, high in ranges:
        for point in range(low, min(high + 1, _CASED_END)):
            more += ((other, other) for other in _load_case_variants().get(point, ()))
    return code_points.merge(more)


@lru_cache(maxsize=1)
def _load_case_variants() -> dict[int, list[int]]:
    """Return, for each letter with several cases, all of them."""
    groups: dict[str, list[int]] = {}
    for point in range(_CASED_END):
        character = chr(point)
        folded = character.casefold()
        if len(folded) > 1:  # simple case folding, as in Unicode's CaseFolding.txt
            lower = character.lower()
            folded = lower if len(lower) == 1 else character
        groups.setdefault(folded, []).append(point)
    return {point: group for group in groups.values() if len(group) > 1 for point in group}
