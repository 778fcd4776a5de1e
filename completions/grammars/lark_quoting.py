"""Rewrites a grammar in Lark for texts as they stand inside a JSON string.

A quote, a backslash and the control characters with a short escape are written as JSON does; other
control characters are left out. Every text of the new grammar, unescaped, is one of the old.
"""

import json
import re
from collections.abc import Callable, Mapping

from completions.grammars.exceptions import GrammarError
from completions.grammars.json_schema.schema import dump
from completions.grammars.patterns.reader import PatternSyntaxError, read
from completions.regular import code_points
from completions.regular.code_points import Ranges
from completions.regular.syntax import Characters
from completions.regular.writer import HasConditionError, Writer, write_class, write_ranges

_ESCAPED: Ranges = ((0x00, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
"""Characters that a JSON string does not hold as they are."""
_ESCAPES: Mapping[int, str] = {ord(each): dump(each)[1:-1] for each in '"\\\b\f\n\r\t'}
_IMPORTED = {
    "ESCAPED_STRING": r'"(?:[^"\\]|\\.)*"',
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
    "NEWLINE": r"(?:\r?\n)+",
    "CR": r"\r",
    "LF": r"\n",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
    "SQL_COMMENT": r"--[^\n]*",
}
"""Lark's common terminals that hold characters which JSON escapes."""
_PIECE = re.compile(
    r"(?P<comment>(?:\#|//)[^\n]*+)"
    r"|(?P<range>\"(?:[^\"\\\n]|\\[^\n])++\"\s*\.\.\s*\"(?:[^\"\\\n]|\\[^\n])++\")"
    r'|(?P<string>"(?:[^"\\\n]|\\[^\n])*+")(?P<ignores_case>i)?'
    r"|/(?P<pattern>(?:[^/\\]|\\[^\n])++)/(?P<flags>[a-z]*)"
    r"|%import\s+common\.(?P<name>\w+)(?:\s*->\s*(?P<alias>\w+))?"
    r"|(?P<refused>%(?:json|regex|lark|import|declare|override|extend)\b|<[^<>\s]++>|&|~(?!\s*[0-9]))"
)


def quote(text: str) -> str:
    """Return the grammar of the same texts inside a JSON string. Raises GrammarError."""
    return _PIECE.sub(lambda match: _quote_piece(text, match), text)


def _quote_piece(text: str, match: re.Match[str]) -> str:
    try:
        for name, rewrite in _REWRITES.items():
            if match[name] is not None:
                return rewrite(match)
    except PatternSyntaxError as error:
        position = match.start() + 1 + error.position
        raise GrammarError.at_offset(text, position, str(error)) from error
    except (HasConditionError, ValueError) as error:
        message = "cannot be written inside a JSON string, as this model's calls have it"
        raise GrammarError.at_offset(text, match.start(), message) from error
    return match[0]


def _refuse(match: re.Match[str]) -> str:
    raise ValueError(match[0])


def _quote_range(match: re.Match[str]) -> str:
    low, high = (ord(json.loads(each)) for each in re.split(r'(?<=")\s*\.\.\s*(?=")', match[0]))
    return f"/{_Writer().write(Characters(((low, high),)))}/"


def _quote_string(match: re.Match[str]) -> str:
    value = json.loads(match["string"])
    if match["ignores_case"]:
        return _quote_regex(f"(?i:{re.escape(value)})")
    return dump(dump(value)[1:-1])


def _quote_pattern(match: re.Match[str]) -> str:
    flags = match["flags"]
    return _quote_regex(f"(?{flags}:{match['pattern']})" if flags else match["pattern"])


def _quote_import(match: re.Match[str]) -> str:
    if match["name"] not in _IMPORTED:
        return match[0]
    return f"{match['alias'] or match['name']}: {_quote_regex(_IMPORTED[match['name']])}"


def _quote_regex(pattern: str) -> str:
    written = _Writer().write(read(pattern)).replace("/", r"\/")
    return f"/{written}/"


_REWRITES: Mapping[str, Callable[[re.Match[str]], str]] = {
    "range": _quote_range,
    "string": _quote_string,
    "pattern": _quote_pattern,
    "name": _quote_import,
    "refused": _refuse,
}


class _Writer(Writer):
    def write_characters(self, atom: Characters) -> str:
        """Return a set of characters, of which some are written as escapes."""
        if atom.properties:
            return f"[{super().write_characters(atom)}--[{write_ranges(_ESCAPED)}]]"
        plain = code_points.subtract(atom.ranges, _ESCAPED)
        options = [write_class(plain)] if plain else []
        for point, escape in _ESCAPES.items():
            if any(low <= point <= high for low, high in atom.ranges):
                options.append(re.escape(escape))
        if not options:
            raise HasConditionError
        return options[0] if len(options) == 1 and plain else f"(?:{'|'.join(options)})"
