"""Regular expressions in the syntax of Rust's regex crate, without look-around and \\b.

As in XGrammar, `\\d`, `\\w` and `\\s` are ASCII. The flag `u`, as in `(?u)`, makes them Unicode's.
"""

import json
import re

from llguidance import LLMatcher

from completions.grammars.compiler import DEFAULT_COMPILER, Compiler, Translated, accepts_nothing
from completions.grammars.complaints import brief, pattern_problem
from completions.grammars.exceptions import GrammarError
from completions.grammars.limits import Limits, check_bytes, check_shape, pieces

# Rust's parser quotes the pattern, underlines the error and explains it.
_PARSE_ERROR = re.compile(r"regex parse error:\n {4}[^\n]*\n {4}( *)\^[^\n]*\nerror: ([^\n]*)")
_ESCAPE_OR_CHARACTER = re.compile(r"\\.|.", re.DOTALL)
_END_ANCHOR = re.compile(r"(?<!\\)(?P<escapes>(?:\\\\)*)\$\Z")
_WORD_BOUNDARIES = (r"\b", r"\B", r"\<", r"\>")
_ASCII = {
    "d": "0-9", "w": "0-9A-Za-z_", "s": r"\t\n\v\f\r\x20",
}  # fmt: skip
_FLAGS_OR_ESCAPE = re.compile(
    r"\\(?P<escaped>.)|(?P<class>\[(?:[^\]\\]|\\.)*+\]?+)"
    r"|\((?:\?(?P<on>[a-zA-Z]*)(?:-(?P<off>[a-zA-Z]*))?(?P<end>[:)]))?|\)",
    re.DOTALL,
)
_DANGLING_BACKSLASH = re.compile(r"(?<!\\)(?:\\\\)*\\\Z")


def translate(pattern: str, compiler: Compiler = DEFAULT_COMPILER) -> Translated:
    """A grammar of the texts that match the whole pattern. Raises GrammarError."""
    screen(pattern, compiler.limits)
    if _DANGLING_BACKSLASH.search(pattern):  # llguidance would drop it
        raise GrammarError.at(
            pattern,
            len(pattern) - 1,
            "the backslash at the end escapes nothing; write \\\\ for a backslash",
        )
    grammar: str = LLMatcher.grammar_from_regex(pattern)
    message = compiler.complaint(grammar)
    if not message and (written := with_ascii_classes(pattern)) != pattern:
        grammar = LLMatcher.grammar_from_regex(written)
        message = compiler.complaint(grammar)
    if not message:
        return Translated(grammar)
    if found := _PARSE_ERROR.search(message):
        raise GrammarError.at(pattern, _offset(pattern, len(found[1])), pattern_problem(found[2]))
    if (offset := _misplaced(pattern)) is not None:
        raise GrammarError.at(pattern, offset, brief(message))
    raise GrammarError(brief(message))


def screen(pattern: str, limits: Limits) -> None:
    """Raises GrammarError for a pattern beyond the static caps."""
    check_bytes(pattern, limits)
    check_shape(pattern, limits, is_regex=True)


def fragment(pattern: str, compiler: Compiler = DEFAULT_COMPILER) -> tuple[str, bool]:
    """The pattern as a terminal of Lark, and whether it matches the empty text.

    The dot matches newlines too, and the whole text must match. Raises GrammarError.
    """
    translate(pattern, compiler)
    terminal = _terminal(f"(?s:{with_ascii_classes(_without_anchors(pattern))})")
    return terminal, accepts_nothing(f"start: {terminal}")


def whole(pattern: str) -> str:
    """A terminal for the texts of a pattern that was lowered, so that it has both anchors."""
    return _terminal(_without_anchors(pattern))


def with_ascii_classes(pattern: str) -> str:
    """The pattern with `\\d`, `\\w` and `\\s` written out, except where the flag `u` is on."""
    unicode = [False]

    def replaced(found: re.Match[str]) -> str:
        if (letter := found["escaped"]) is not None:
            inside = _ASCII.get(letter.lower(), "")
            if unicode[-1] or not inside:
                return found[0]
            return f"[{'^' * letter.isupper()}{inside}]"
        if found["class"]:
            return "[" + _FLAGS_OR_ESCAPE.sub(replaced, found[0][1:])
        if found[0] == ")":
            unicode[1:] = unicode[1:-1]
            return ")"
        if found["end"] != ")":
            unicode.append(unicode[-1])
        if found["end"]:
            on, off = "u" in found["on"], "u" in (found["off"] or "")
            unicode[-1] = on or (unicode[-1] and not off)
        return found[0]

    return _FLAGS_OR_ESCAPE.sub(replaced, pattern)


def _terminal(pattern: str) -> str:
    grammar = json.loads(LLMatcher.grammar_from_regex(pattern))
    lark: str = grammar["grammars"][0]["lark_grammar"]
    return lark.removeprefix("start: ").rstrip()


def _without_anchors(pattern: str) -> str:
    return _END_ANCHOR.sub(r"\g<escapes>", pattern.removeprefix("^"))


def _misplaced(pattern: str) -> int | None:
    """The offset of the first word boundary, or of the first anchor inside the pattern."""
    for piece in pieces(pattern):
        at_end = {"^": piece.start() == 0, "$": piece.end() == len(pattern)}
        if piece[0] in _WORD_BOUNDARIES or not at_end.get(piece[0], True):
            return piece.start()
    return None


def _offset(pattern: str, shown: int) -> int:
    """The offset in the pattern of a column in the message, which escapes slashes and newlines."""
    width = 0
    for part in _ESCAPE_OR_CHARACTER.finditer(pattern):
        width += 2 if part[0] in "/\n" else len(part[0])
        if width > shown:
            return part.start()
    return len(pattern)
