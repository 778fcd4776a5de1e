"""Reads the arguments of a call, as its format writes them, to JSON while they arrive."""

from collections.abc import Mapping
from string import hexdigits
from typing import Any, Protocol

from completions.chat.argument_types import ArgumentTypes, Path
from completions.chat.markers import split_at
from completions.chat.tools import dump
from completions.contract import strict_json
from completions.grammars.structural_tag.literals import JSON_QUOTE, PYTHON, Literals
from completions.grammars.structural_tag.parameters import Style

_VALUE = "value"
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}


class ArgumentReader(Protocol):
    """A reader of one call's arguments."""

    is_done: bool

    def read(self, text: str) -> tuple[str, str]:
        """Return the next piece of JSON, and the text that is left for the next read."""


class JSONReader:
    """Reader of a JSON object, which is passed on as it is."""

    def __init__(self) -> None:
        self.is_done = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def read(self, text: str) -> tuple[str, str]:
        for index, character in enumerate(text):
            if self._in_string:
                self._in_string = self._escaped or character != '"'
                self._escaped = character == "\\" and not self._escaped
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.is_done = True
                    return text[: index + 1], text[index + 1 :]
        return text, ""


class TaggedReader:
    """Reader of parameters in tags: declared strings piece by piece, other values once they are
    complete. Lists and objects may be tags too."""

    def __init__(self, style: Style, end: str, schema: Mapping[str, Any]) -> None:
        self.is_done = False
        self._style, self._end = style, end
        self._name_end = style.opening.partition("{")[0].rstrip("\n")
        self._value_begin = style.opening.rpartition("}")[2].rstrip("\n")
        self._types = ArgumentTypes(schema)
        self._separator = "{"
        self._path: Path = ()
        self._closers: list[str] = []  # brackets that end the lists and objects around a value
        self._is_text = False
        self._step = self._read_between

    def read(self, text: str) -> tuple[str, str]:
        pieces: list[str] = []
        is_stuck = False
        while not (is_stuck or self.is_done):
            piece, text, is_stuck = self._step(text)
            pieces.append(piece)
        return "".join(pieces), text

    def _read_between(self, text: str) -> tuple[str, str, bool]:
        before = self._style.before
        _, mark, rest = split_at(text, (before,) if self._closers else (self._end, before))
        if mark == before and self._style.item and rest[:1] in ("", "/"):
            if not rest:
                return "", mark, True
            if self._closers:
                self._path, self._separator = self._path[:-1], ","
                return self._closers.pop(), rest, False
            mark, rest = self._end, before + rest
        elif mark == self._end:
            rest = mark + rest
        if mark == self._end:
            self.is_done = True
            return "{}" if self._separator == "{" else "}", rest, False
        if mark is not None:
            self._step = self._read_name
        return "", rest, mark is None

    def _read_name(self, text: str) -> tuple[str, str, bool]:
        header, mark, rest = text.partition(self._value_begin)
        trims = self._style.opening.endswith("\n")
        if not mark or (trims and not rest):
            return "", text, True
        name, _, flag = header.partition(self._name_end)
        is_item = self._closers[-1:] == ["]"]
        self._path = (*self._path, None if is_item else name.strip())
        declared = self._style.is_text(flag.rpartition('"')[2])
        self._is_text = self._types.is_string(self._path) if declared is None else declared
        key = "" if is_item else f"{dump(name.strip())}:"
        piece = self._separator + key + ('"' if self._is_text else "")
        self._separator = ","
        self._step = self._read_value
        return piece, rest.removeprefix("\n") if trims else rest, False

    def _read_value(self, text: str) -> tuple[str, str, bool]:
        style, nests = self._style, bool(self._style.item) and not self._is_text
        ends = (style.value_end, style.before) if nests else (style.value_end,)
        value, mark, held = split_at(text, ends)
        if nests and mark == style.before:
            name, end, _ = held.partition(self._value_begin)
            return (self._open(name), mark + held, False) if end else ("", text, True)
        if mark is not None and style.closing.startswith("\n"):
            value = value.removesuffix("\n")
        if mark is not None:
            path, self._path = self._path, self._path[:-1]
            self._step = self._read_between
            if self._is_text:
                return dump(value)[1:-1] + '"', held, False
            if not self._types.allows("string", path):
                value = _respell(value) or self._types.find_empty(path)
            return self._types.to_json(path, value), held, False
        if not self._is_text:
            return "", text, True
        if style.closing.startswith("\n") and value.endswith("\n"):
            value, held = value[:-1], "\n" + held
        return dump(value)[1:-1], held, True

    def _open(self, name: str) -> str:
        """Return the bracket that begins a list or an object, whose first tag has this name."""
        is_list = name == self._style.item and self._types.allows("array", self._path)
        opener, closer = "[]" if is_list else "{}"
        self._closers.append(closer)
        self._separator, self._step = "", self._read_between
        return opener


class LiteralReader:
    """Reader of named arguments in literals, up to the bracket that closes them."""

    def __init__(self, literals: Literals) -> None:
        self.is_done = False
        self._assign = literals.assign
        self._quotes = [literals.quote] if literals.quote != JSON_QUOTE else ['"', "'"]
        self._escapes = literals.quote == JSON_QUOTE
        self._quote = ""  # of the string that is being read
        self._stack: list[str] = []
        self._word = ""
        self._is_key = True
        self._begun = False

    def read(self, text: str) -> tuple[str, str]:
        pieces: list[str] = []
        while text and not self.is_done:
            read = self._read_string if self._quote else self._read_outside
            length, piece = read(text)
            pieces.append(piece)
            if not length:
                break
            text = text[length:]
        return "".join(pieces), text

    def _read_string(self, text: str) -> tuple[int, str]:
        before, mark, held = split_at(text, (self._quote,))
        if self._escapes and (escape := before.find("\\")) >= 0:
            if escape:
                return escape, dump(before[:escape])[1:-1]
            return self._read_escape(text)
        if mark is None:
            return len(text) - len(held), dump(before)[1:-1]
        self._quote = ""
        return len(before) + len(mark), dump(before)[1:-1] + '"'

    def _read_escape(self, text: str) -> tuple[int, str]:
        if text[1:2] == "u":
            digits = text[2:6]
            if all(each in hexdigits for each in digits):
                return (6, text[:6]) if len(digits) == 4 else (0, "")
        escaped = text[1:2]
        if not escaped:
            return 0, ""
        return 2, f"\\{escaped}" if escaped in '"\\/bfnrt' else dump(escaped)[1:-1]

    def _read_outside(self, text: str) -> tuple[int, str]:
        character = text[0]
        if not self._word:
            for mark in self._quotes:
                if text.startswith(mark):
                    self._quote = mark
                    return len(mark), self._begin() + '"'
                if mark.startswith(text):
                    return 0, ""
        separator = self._assign if not self._stack else ":"
        if self._is_key and character == separator:
            return 1, self._end_word(is_key=True) + ":"
        if character in ",]})" or character.isspace():
            piece = self._end_word(is_key=False)
            if character.isspace():
                return 1, piece
            if character == ",":
                self._is_key = not self._stack or self._stack[-1] == "}"
                return 1, piece + ","
            return self._close(character, piece)
        if character in "[{" and not self._word:
            self._stack.append("]" if character == "[" else "}")
            piece = self._begin() + character
            self._is_key = character == "{"
            return 1, piece
        self._word += character
        return 1, ""

    def _close(self, character: str, piece: str) -> tuple[int, str]:
        if self._stack:
            self._stack.pop()
            self._is_key = False
            return 1, piece + ("]" if character == "]" else "}")
        self.is_done = True
        return 0, piece + ("}" if self._begun else "{}")

    def _begin(self) -> str:
        """Return the bracket before the first argument."""
        if self._begun:
            return ""
        self._begun = True
        return "{"

    def _end_word(self, *, is_key: bool) -> str:
        word, self._word = self._word, ""
        if is_key:
            self._is_key = False
            return self._begin() + dump(word) if word else ""
        if not word:
            return ""
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        try:
            strict_json.loads(word)
        except strict_json.StrictJSONError:
            return dump(word)
        return word


def _respell(text: str) -> str:
    """Return a value that is spelled as Python's as JSON; any other text as it is. Templates that
    print values write them so, and models learn it."""
    if _is_json(text):
        return text
    reader = LiteralReader(PYTHON)
    read, rest = reader.read(f"{_VALUE}={text.strip()})")
    value = read.removeprefix(f'{{"{_VALUE}":')[:-1]
    is_value = reader.is_done and rest == ")" and value[:1] != '"' and _is_json(value)
    return value if is_value else text


def _is_json(text: str) -> bool:
    try:
        strict_json.loads(text)
    except strict_json.StrictJSONError:
        return False
    return True
