"""llguidance's messages about a text in Lark, in words that a client can act on."""

import json
import re

from completions.grammars.messages import explain_error, truncate

_UNEXPECTED = re.compile(
    r"(?:at EOF: )?(?:Expected token (?P<wanted>.+?), found .*?|(?P<value>Expected value)"
    r"|expecting rule, token or statement) \(at (?P<found>\".*?\") \(.*"
)
"""A part of the text that cannot stand in its place."""
_EXPECTED = {
    "a number": "a number",
    "'rule_name'": "the name of a rule, in lower case",
    "'TOKEN_NAME'": "the name of a terminal, in upper case",
}
_NAMES = (
    "a name is in lower case, for a rule, or in upper case, for a terminal, and a definition is "
    "written as name: ..."
)
_OPENED = {")": "(", "]": "[", "}": "{"}
_UNREADABLE = {
    "'": "write a string in double quotes",
    "`": "write a string in double quotes",
    ";": "a rule ends with its line; remove the ;",
}
"""By a character that nothing in Lark begins with."""
_DIRECTIVES = "use %ignore, %import, %json, %regex or %llguidance"
_INSIDE = r'(?:[^"\\]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2})*+'
_PIECE = re.compile(
    rf'"{_INSIDE}(?:"|(?P<escape>\\.))?+|/(?:[^/\\]|\\.)++/?+|(?:#|//).*|.', re.DOTALL
)
"""A string, up to an escape that it cannot hold if there is one, a pattern, a comment or a
character. What does not end is one piece too, so that a line is read once."""
_QUOTES = 'write a string as "a", and a pattern as /[a-z]+/'
_TERMINAL = "which can stand only in rules, whose names are in lower case"
_MESSAGES: dict[str, str] = {
    "no start rule found": "there is no rule named start; add the rule that the whole text matches",
    'duplicate (?:rule|token): "(.*)"': (
        r"\1 is defined twice; write one definition with | between the alternatives"
    ),
    'circular reference in token "([a-z].*)" definition': (
        r"the rule \1 contains itself, which a rule with lazy or suffix cannot; leave that out"
    ),
    'circular reference in token "(.*)" definition': (
        r"the terminal \1 contains itself; make it a rule, with a name in lower case"
    ),
    r"unknown grammar @(\S*).*": (
        r"there is no grammar named \1; give one of the grammars this name"
    ),
    "range start must be a single character|range end must be a single character": (
        'a range is between single characters, as in "a".."z"'
    ),
    "invalid range order: (.*)": r"the range \1 is reversed; write the smaller character first",
    r"range end must be >= start, got \((\d+), (\d+)\)": (
        r"the repetition {\1,\2} has a minimum above its maximum; write the smaller number first"
    ),
    r"range start must be >= 0, got (-\d+)": (
        r"a repetition cannot have \1 as its minimum; write 0 or more"
    ),
    "flags not allowed in this context": (
        "a range has no flags; remove the letter after the quotation mark, or write a pattern"
    ),
    "(.)-flag is not supported in regexes": r"the flag \1 is not supported; use i, m, s or x",
    "Unexpected condition '(.*)'": r"the condition \1 is unknown; remove %if",
    'rule "(.*)" not found': (
        r"the rule \1 is not defined; define it, or write a string in double quotes"
    ),
    "End number in range cannot be 0": "a repetition of at most 0 times matches nothing; remove it",
    "Unknown common regex: (.*); following are available: (.*)": (
        r"there is no \1 to import; use one of: \2"
    ),
    "(declare|override) statement not supported yet": (
        r"%\1 is not supported; define the terminal in this text"
    ),
    "priority not supported yet": "a priority is not supported; remove the number",
    "(?:params|template usage) not supported yet": (
        "templates are not supported; write out the rule for each use"
    ),
    "Unknown attribute: max_chars": (
        "a rule has no attribute max_chars; bound its characters, as in /.{0,80}/"
    ),
    "Unknown attribute: (.*)": r"a rule has no attribute \1; use lazy, suffix or capture",
    r"Token range end too large: (\d+)": r"the model has no token \1; give smaller ids",
    'invalid token range: "(.*)"': (
        r"the token range \1 cannot be read; write ids as in <[1,5-9]>, the smaller one first"
    ),
    "empty token range": "the token range is empty; write ids as in <[1,5-9]>",
    r"(?:negated wildcard token <\[\^\*\]> is|wildcard token range '\*' must) not .*": (
        "a wildcard stands alone, as in <[*]>; write ids as in <[1,5-9]> or <[^1,5-9]>"
    ),
    "Cannot have multiple stop/suffix conditions": "a rule has one suffix; remove the others",
    "stop_capture_name requires .*": "stop_capture needs suffix beside it; leave it out",
    r"panic: assertion failed: !state\.has_lowest_match\(\)": (
        "a lazy rule cannot match the empty text; require a character, as in /[a-z]+/"
    ),
    "invalid digit found in string": (
        "token ids are numbers, as in <[1,5-9]>; a special token is written with its name, as in "
        "<|im_end|>"
    ),
    r"special tokens \(like \"(.*)\"\) cannot be used in terminals": (
        rf"\1 is a token, {_TERMINAL}"
    ),
    "%json literals cannot be used in terminals": f"%json is a grammar, {_TERMINAL}",
    r"failed to parse \"?%json\"?: (.*?)(?: at line \d+ column \d+)?": (
        r"what follows %json is not a JSON object: \1"
    ),
    "failed to compile JSON schema: .*": "a schema after %json must be an object",
    r"failed to parse \"?%regex\"?: .*|no fields set on %regex|only one field can be .*": (
        "what follows %regex must be an object with one of substring_chunks, an array of strings, "
        "substring_words and substring_chars, strings"
    ),
    r"failed to parse \"?%llguidance(?: declaration)?\"?: invalid type.*": (
        "what follows %llguidance must be an object of its options"
    ),
    "number too large to fit in target type": "a number is too large; write a smaller one",
    "duplicate grammar name: @(.*)": r"two grammars are named \1; rename one",
    r"failed to parse \"?%llguidance(?: declaration)?\"?: (.*?)(?: at line \d+ column \d+)?": (
        r"what follows %llguidance must be an object of its options: \1"
    ),
    "rollback not supported with .*": (
        "stop is not supported; write suffix instead, whose text is part of the output, or lazy"
    ),
    "& is only supported for tokens, not rules; .*": (
        "& joins only terminals; define a terminal, with a name in upper case, and use it here"
    ),
}
"""What to write instead, by a pattern of llguidance's whole message. The first that matches
decides."""
_TOKEN_NAMES = re.compile(r' \(at ".*')
"""What llguidance read at the place of the fault."""
_SPECIAL = re.compile(
    r'unknown special token: "(.*?)"; following special tokens are available: (.*)'
)
_UNDEFINED = re.compile(r'unknown name: "(.*)"')


def explain(message: str, text: str = "", line: int | None = None, column: int | None = 1) -> str:
    """Return what is wrong, and what to write instead. `text` is the Lark text, with the place of
    the fault, where they are known."""
    first = explain_error(message)
    if match := _UNEXPECTED.fullmatch(first):
        return _explain_unexpected(match, _get_line(text, line), (column or 1) - 1)
    if first == "lexer error":
        if line is None or column is None:
            return f"a part of it cannot be read; {_QUOTES}"
        return _explain_unreadable(_get_line(text, line), (column or 1) - 1)
    if match := _SPECIAL.fullmatch(first):
        return _explain_special_token(match[1], match[2])
    if match := _UNDEFINED.fullmatch(first):
        return _explain_undefined(match[1], text)
    first = _TOKEN_NAMES.sub("", first)
    for pattern, advice in _MESSAGES.items():
        if match := re.fullmatch(pattern, first):
            return _fill(advice, match)
    return truncate(first, 500)


def _fill(advice: str, match: re.Match[str]) -> str:
    """Return the advice with what llguidance quotes; the first part may be a name of the
    client's."""
    parts = {"1": truncate(match[1])} if match.re.groups else {}
    if match.re.groups > 1:
        parts["2"] = match[2]
    return re.sub(r"\\([12])", lambda group: parts[group[1]], advice)


def _get_line(text: str, line: int | None) -> str:
    lines = text.split("\n")
    return lines[line - 1] if line is not None and 1 <= line <= len(lines) else ""


def _explain_unexpected(match: re.Match[str], line: str, offset: int) -> str:
    text = truncate(_unquote(match["found"]))
    quoted = "the end of the line" if text == "\n" else text
    expected = match["wanted"]
    if expected == "':'" and text == "[":
        return "only rules, whose names are in lower case, can have attributes in [...]"
    if expected == "'='":
        return "only lazy and capture are attributes without a value; write others as name=value"
    if expected in ("':'", "'_'"):
        if text == "=" and "::=" in line[max(0, offset - 2) : offset + 3]:
            return "write : instead of ::="
        if text[:1].isalnum() and (before := re.search(r"\w+\Z", line[:offset][-100:])):
            quoted = before[0] + quoted  # llguidance reads Start as S and tart
        return f"{quoted} cannot stand here: {_NAMES}"
    if expected is not None:
        return f"{quoted} cannot stand here; write {_EXPECTED.get(expected, expected)}"
    if text in ("+", "*", "?"):
        return f"{text} has nothing to repeat; write a string, a name or a group (...) before it"
    if text in _OPENED:
        return f"this {text} has no matching {_OPENED[text]}; remove it"
    if match["value"]:
        return f"{quoted} cannot stand here; write a string, a pattern, a name or a group (...)"
    return f"{quoted} cannot begin a definition: {_NAMES}"


def _unquote(text: str) -> str:
    """Return a text that Rust quotes. It may hold escapes that JSON lacks."""
    try:
        return str(json.loads(text))
    except ValueError:
        return text[1:-1]


def _explain_unreadable(line: str, offset: int) -> str:
    """Return the refusal of a line at a place where nothing can be read."""
    escapes = (piece["escape"] for piece in _PIECE.finditer(line[: offset + 1]))
    if escape := next(filter(None, escapes), None):
        return f"the escape {escape} is unknown in a string; write \\\\ for a backslash"
    if line[offset - 1 : offset] == "%":
        name = re.match(r"\w*", line[offset:])
        return f"there is no directive %{truncate(name[0]) if name else ''}; {_DIRECTIVES}"
    if not (character := line[offset : offset + 1]):
        return (
            'a string or a pattern before this does not end; close it with " or /, and write a '
            "newline in it as \\n"
        )
    advice = _UNREADABLE.get(character, _QUOTES)
    quoted = "a space" if character == " " else character
    return f"{quoted} cannot stand here; {advice}"


def _explain_special_token(name: str, names: str) -> str:
    tokens = [each for each in names.strip("⟦⟧").split("‧") if each.startswith("<")]
    name = truncate(name)
    by_id = "write a token by its id as in <[5]>, and text in quotes"
    if not tokens:
        return f"the model has no special token {name}; {by_id}"
    return f"the model has no special token {name}; some that it has: {', '.join(tokens)}; {by_id}"


def _explain_undefined(name: str, text: str) -> str:
    if re.search(rf"^[ \t]*[?!]?{re.escape(name)}\b[^:\n\"/]*:", text, re.MULTILINE):
        return (
            f"the rule {truncate(name)} cannot stand in a terminal; make it a terminal, with a "
            "name in upper case"
        )
    name = truncate(name)
    return f"{name} is not defined; define it as {name}: ..., or write a string in double quotes"
