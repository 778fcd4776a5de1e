"""Regular expressions in the syntax of Rust's regex crate, without look-around and \\b.

As in XGrammar, `\\d`, `\\w` and `\\s` are ASCII. The flag `u`, as in `(?u)`, makes them Unicode's.
"""

import json
import re

from llguidance import LLMatcher

from completions.grammars.compiler import DEFAULT_COMPILER, Compiler, Translation, is_nullable
from completions.grammars.exceptions import GrammarError
from completions.grammars.limits import Limits, check_bytes, check_shape, iter_pieces
from completions.grammars.messages import explain_error, explain_pattern_error

# Rust's parser quotes the pattern, underlines the error and explains it.
_PARSE_ERROR = re.compile(r"regex parse error:\n {4}[^\n]*\n {4}( *)\^[^\n]*\nerror: ([^\n]*)")
_ESCAPE_OR_CHARACTER = re.compile(r"\\.|.", re.DOTALL)
_END_ANCHOR = re.compile(r"(?<!\\)(?P<escapes>(?:\\\\)*)\$\Z")
_WORD_BOUNDARIES = (r"\b", r"\B", r"\<", r"\>")
_ASCII = {"d": "0-9", "w": "0-9A-Za-z_", "s": r"\t\n\v\f\r\x20"}
_FLAGS_OR_ESCAPE = re.compile(
    r"\\(?P<escaped>.)|(?P<class>\[(?:[^\]\\]|\\.)*+\]?+)"
    r"|\((?:\?(?P<on>[a-zA-Z]*)(?:-(?P<off>[a-zA-Z]*))?(?P<end>[:)]))?|\)",
    re.DOTALL,
)
_DANGLING_BACKSLASH = re.compile(r"(?<!\\)(?:\\\\)*\\\Z")


def translate(pattern: str, compiler: Compiler = DEFAULT_COMPILER) -> Translation:
    """Return a grammar of the texts that match the whole pattern. Raises GrammarError."""
    screen(pattern, compiler.limits)
    if _DANGLING_BACKSLASH.search(pattern):  # llguidance would drop it
        raise GrammarError.at_offset(
            pattern,
            len(pattern) - 1,
            "the backslash at the end escapes nothing; write \\\\ for a backslash",
        )
    grammar: str = LLMatcher.grammar_from_regex(pattern)
    message = compiler.find_error(grammar)
    if not message and (ascii_pattern := use_ascii_classes(pattern)) != pattern:
        grammar = LLMatcher.grammar_from_regex(ascii_pattern)
        message = compiler.find_error(grammar)
    if not message:
        return Translation(grammar)
    if match := _PARSE_ERROR.search(message):
        raise GrammarError.at_offset(
            pattern, _find_offset(pattern, len(match[1])), explain_pattern_error(match[2])
        )
    if (offset := _find_misplaced(pattern)) is not None:
        raise GrammarError.at_offset(pattern, offset, explain_error(message))
    raise GrammarError(explain_error(message))


def screen(pattern: str, limits: Limits) -> None:
    """Raise GrammarError for a pattern beyond the static caps."""
    check_bytes(pattern, limits)
    check_shape(pattern, limits, is_regex=True)


def translate_fragment(pattern: str, compiler: Compiler) -> tuple[str, bool]:
    """Return the pattern as a terminal of Lark, and whether it matches the empty text.

    The dot matches newlines too, and the whole text must match. Raises GrammarError.
    """
    translate(pattern, compiler)
    terminal = _make_terminal(f"(?s:{use_ascii_classes(_remove_anchors(pattern))})")
    return terminal, is_nullable(f"start: {terminal}")


def anchor(pattern: str) -> str:
    """Return a terminal for the texts of a pattern that was lowered, so that it has both
    anchors."""
    return _make_terminal(_remove_anchors(pattern))


def use_ascii_classes(pattern: str) -> str:
    """Return the pattern with `\\d`, `\\w` and `\\s` written out, except where the flag `u` is
    on."""
    unicode = [False]

    def replace(match: re.Match[str]) -> str:
        if (letter := match["escaped"]) is not None:
            inside = _ASCII.get(letter.lower(), "")
            if unicode[-1] or not inside:
                return match[0]
            return f"[{'^' * letter.isupper()}{inside}]"
        if match["class"]:
            return "[" + _FLAGS_OR_ESCAPE.sub(replace, match[0][1:])
        if match[0] == ")":
            unicode[1:] = unicode[1:-1]
            return ")"
        if match["end"] != ")":
            unicode.append(unicode[-1])
        if match["end"]:
            on, off = "u" in match["on"], "u" in (match["off"] or "")
            unicode[-1] = on or (unicode[-1] and not off)
        return match[0]

    return _FLAGS_OR_ESCAPE.sub(replace, pattern)


def _make_terminal(pattern: str) -> str:
    grammar = json.loads(LLMatcher.grammar_from_regex(pattern))
    lark: str = grammar["grammars"][0]["lark_grammar"]
    return lark.removeprefix("start: ").rstrip()


def _remove_anchors(pattern: str) -> str:
    return _END_ANCHOR.sub(r"\g<escapes>", pattern.removeprefix("^"))


def _find_misplaced(pattern: str) -> int | None:
    """Return the offset of the first word boundary, or of the first anchor inside the pattern."""
    for piece in iter_pieces(pattern):
        at_end = {"^": piece.start() == 0, "$": piece.end() == len(pattern)}
        if piece[0] in _WORD_BOUNDARIES or not at_end.get(piece[0], True):
            return piece.start()
    return None


def _find_offset(pattern: str, offset: int) -> int:
    """Return the offset in the pattern of a column in the message, which escapes slashes and
    newlines."""
    width = 0
    for part in _ESCAPE_OR_CHARACTER.finditer(pattern):
        width += 2 if part[0] in "/\n" else len(part[0])
        if width > offset:
            return part.start()
    return len(pattern)
