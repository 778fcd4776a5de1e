"""llguidance's messages in words that a client can act on."""

import json
import re
from collections.abc import Mapping

from completions.contract.llguidance_limits import TOO_MANY_ITEMS, TOO_MANY_STATES

# Locations in llguidance's messages point into generated text, which the client never saw.
_LOCATION = re.compile(r"^(at )?\d+\(\d+\): ")

_PATTERN_ERROR = re.compile(r"regex parse error:\n(.*)\nerror: ([^\n]*)", re.DOTALL)
_QUOTED_PATTERN = re.compile(r" {4}(.*)\n {4}[ ^]*\^")
"""A pattern and the line that underlines the fault; a pattern of several lines is shown
otherwise."""
_MAX_QUOTED = 100
_ESCAPE = "this escape is unknown; write the character without a backslash, or \\\\ for a backslash"
_SHORT_ESCAPE = "this escape ends too early; write it as in \\n, \\x41, \\u0041 or \\p{Lu}"
_CODE_POINT = "this is not a code point; write one as in \\x41, \\u0041 or \\u{1F600}"
_COUNT = "write a repetition as {m}, {m,} or {m,n}, and \\{ for the character"
_FLAG = "write a group as (...), (?:...) or (?P<name>...), and flags of i, m, s, U and x as in (?i)"
_PROPERTY = "this Unicode property is unknown; write one as in \\p{Lu}, \\p{L} or \\p{Greek}"
_GROUP_NAME = "write a named group as (?P<name>...), where the name has letters, digits and _"
_LOOK_AROUND_ADVICE = "look-ahead and look-behind are not supported; write out what may stand there"
PATTERN_ADVICE: Mapping[str, str] = {
    "look-around, including look-ahead and look-behind, is not supported": _LOOK_AROUND_ADVICE,
    "backreferences are not supported": (
        "back-references are not supported; write out the texts that may repeat"
    ),
    "exceed the maximum number of nested parentheses/brackets (250)": (
        "more than 250 nested parentheses and brackets; remove some"
    ),
    "unclosed group": "this ( is not closed; write a ), or \\( for the character",
    "unopened group": "this ) has no matching (; write \\) for the character",
    "unclosed character class": (
        "this character class is not closed; write a ] after at least one character, or \\[ for "
        "the character"
    ),
    "invalid character class range, the start must be <= the end": (
        "this range is reversed; write the smaller character first"
    ),
    "invalid range boundary, must be a literal": (
        "a range is between two characters, not a class; write \\- for a hyphen"
    ),
    "invalid escape sequence found in character class": (
        "this escape cannot stand in [...]; write \\x08 for a backspace"
    ),
    "repetition operator missing expression": (
        "there is nothing to repeat before this; write a backslash before it for the character"
    ),
    "invalid repetition count range, the start must be <= the end": (
        "this repetition has a minimum above its maximum; write the smaller number first"
    ),
    "unclosed counted repetition": _COUNT,
    "repetition quantifier expects a valid decimal": _COUNT,
    "decimal literal empty": _COUNT,
    "decimal literal invalid": _COUNT,
    "unrecognized escape sequence": _ESCAPE,
    "incomplete escape sequence, reached end of pattern prematurely": _SHORT_ESCAPE,
    "hexadecimal literal empty": _CODE_POINT,
    "invalid hexadecimal digit": _CODE_POINT,
    "hexadecimal literal is not a Unicode scalar value": _CODE_POINT,
    "unrecognized flag": _FLAG,
    "expected flag but got end of regex": _FLAG,
    "dangling flag negation operator": _FLAG,
    "duplicate flag": "this flag is given twice; remove one",
    "duplicate capture group name": "two groups have this name; rename one, or write (?:...)",
    "empty capture group name": _GROUP_NAME,
    "invalid capture group character": _GROUP_NAME,
    "unclosed capture group name": _GROUP_NAME,
    "Unicode property not found": _PROPERTY,
    "Unicode property value not found": _PROPERTY,
    "pattern can match invalid UTF-8": (
        "this matches bytes that are not characters; leave out (?-u), or write the character itself"
    ),
}
"""What Rust's parser of patterns says, and what a client can act on."""
_LEXER = "too complex; simplify its patterns and repetitions"
TOO_MANY_ALTERNATIVES = (
    "too complex; it allows too many alternatives at once, or texts without end: make it less "
    "ambiguous, and let each part that contains itself end"
)
_LOOK_AROUND = re.compile(r"lookarounds not supported yet; (Start|End|Word)")
_ANCHORS = {
    "Start": "^ is supported at the beginning of a pattern only; write \\^ for the character",
    "End": "$ is supported at the end of a pattern only; write \\$ for the character",
    "Word": r"word boundaries (\b, \B, \<, \>) are not supported; write out what may stand there",
}
_INTERNALS = re.compile(r":  \(.*")
"""The pattern that follows a message, in llguidance's internal syntax."""
_STOP_REASONS = {
    "NoExtensionBias": (
        "no text can match it: a part contains itself without a way to end, or allows no "
        "character; give it an alternative"
    ),
    "LexerTooComplex": _LEXER,
    "ParserTooComplex": TOO_MANY_ALTERNATIVES,
}


def explain_pattern_error(message: str) -> str:
    """Return what is wrong with a pattern, from the message of Rust's parser."""
    return PATTERN_ADVICE.get(message, message)


def explain_error(message: str, own: str | None = None) -> str:
    """Return llguidance's message in one line, without the location in the generated text.

    `own` is the pattern at fault as the client wrote it, if known: llguidance escapes slashes.
    """
    if match := _PATTERN_ERROR.search(message):
        pattern = _QUOTED_PATTERN.fullmatch(match[1])
        quoted = f' "{truncate(own or pattern[1])}"' if pattern else ""
        return f"invalid pattern{quoted}: {explain_pattern_error(match[2])}"
    if match := _LOOK_AROUND.search(message):
        return f"invalid pattern: {_ANCHORS[match[1]]}"
    first = _LOCATION.sub("", message).partition("\n")[0].strip()
    if TOO_MANY_ITEMS.search(first):
        return TOO_MANY_ALTERNATIVES
    if TOO_MANY_STATES.search(first):
        return _LEXER
    return _STOP_REASONS.get(first, _INTERNALS.sub("", first))


def truncate(text: str, max_length: int = _MAX_QUOTED) -> str:
    """Return what a client wrote, for a message: a constraint may be one name of 256 kB."""
    return text if len(text) <= max_length else f"{text[: max_length - 3]}..."


def format_value(value: object) -> str:
    """Return a JSON value that a client sent, as it appears in a message: at most 64 characters."""
    text = json.dumps(value, ensure_ascii=False).encode(errors="backslashreplace").decode()
    return text if len(text) <= 64 else f"{text[:61]}..."
