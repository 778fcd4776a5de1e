"""Expressions without recursion, written as patterns for Rust's regex crate."""

from collections.abc import Mapping
from enum import IntEnum

from completions.grammars.ebnf import code_points
from completions.grammars.ebnf.code_points import Ranges
from completions.grammars.ebnf.expressions import (
    EMPTY,
    Alternation,
    Characters,
    Concatenation,
    Expression,
    Literal,
    Reference,
    Repeat,
)

ANY = "(?s:.)"
"""Any character, newline included."""
_LOOPS = {(0, None): "*", (1, None): "+", (0, 1): "?"}


class _Binding(IntEnum):
    """The operator that a pattern is an operand of."""

    ALTERNATION = 0
    CONCATENATION = 1
    ATOM = 2


_Piece = tuple[Expression, _Binding] | str


def loop(low: int, high: int | None) -> str:
    """The suffix that repeats a pattern, or a symbol of Lark."""
    if low == high:
        return f"{{{low}}}"
    return _LOOPS.get((low, high)) or f"{{{low},{'' if high is None else high}}}"


def pattern(node: Expression, rules: Mapping[str, Expression]) -> str:
    """The pattern of an expression, with its references expanded."""
    written: list[str] = []
    todo: list[_Piece] = [(node, _Binding.ALTERNATION)]
    while todo:
        each = todo.pop()
        if isinstance(each, str):
            written.append(each)
        else:
            todo += reversed(_pieces(*each, rules))
    return "".join(written)


def _pieces(node: Expression, binding: _Binding, rules: Mapping[str, Expression]) -> list[_Piece]:
    """The first level of a pattern: text, and expressions still to be written."""
    if isinstance(node, Reference):
        return [(rules[node.name], binding)]
    if isinstance(node, Characters):
        return [_class(node.ranges)]
    if isinstance(node, Literal):
        text = quoted(node.text)
        return [text if binding < _Binding.ATOM or len(node.text) == 1 else f"(?:{text})"]
    if isinstance(node, Repeat):
        pieces: list[_Piece] = [(node.body, _Binding.ATOM), loop(node.low, node.high)]
        return pieces if binding < _Binding.ATOM else ["(?:", *pieces, ")"]
    if isinstance(node, Concatenation):
        pieces = [(part, _Binding.CONCATENATION) for part in node.parts]
        return pieces if binding < _Binding.ATOM and node is not EMPTY else ["(?:", *pieces, ")"]
    if isinstance(node, Alternation):
        pieces = []
        for option in node.options:
            pieces += ["|", (option, _Binding.CONCATENATION)]
        return pieces[1:] if binding < _Binding.CONCATENATION else ["(?:", *pieces[1:], ")"]
    raise TypeError(node)


def quoted(text: str) -> str:
    """The pattern that matches exactly this text."""
    return "".join(map(_character, text))


def _class(ranges: Ranges) -> str:
    if ranges == code_points.ALL:
        return ANY
    return f"[{''.join(_range(low, high) for low, high in ranges)}]"


def _range(low: int, high: int) -> str:
    return _escape(low) if low == high else f"{_escape(low)}-{_escape(high)}"


def _character(character: str) -> str:
    plain = character.isascii() and (character.isalnum() or character == " ")
    return character if plain else _escape(ord(character))


def _escape(code_point: int) -> str:
    return f"\\x{{{code_point:X}}}"
