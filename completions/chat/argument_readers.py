"""Reads the arguments of a call, as its format writes them, to JSON while they arrive."""

from collections.abc import Mapping
from typing import Any, Protocol

from completions.chat.argument_types import ArgumentTypes
from completions.chat.markers import split_at
from completions.chat.tools import dump
from completions.grammars.structural_tag.parameters import Style


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
    complete."""

    def __init__(self, style: Style, end: str, schema: Mapping[str, Any]) -> None:
        self.is_done = False
        self._style, self._end = style, end
        self._name_end = style.opening.partition("{")[0].rstrip("\n")
        self._value_begin = style.opening.rpartition("}")[2].rstrip("\n")
        self._value_end = style.closing.strip()
        self._types = ArgumentTypes(schema)
        self._separator = "{"
        self._name = ""
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
        _, mark, rest = split_at(text, (self._style.before, self._end))
        if mark == self._end:
            self.is_done = True
            return "{}" if self._separator == "{" else "}", mark + rest, False
        if mark is not None:
            self._step = self._read_name
        return "", rest, mark is None

    def _read_name(self, text: str) -> tuple[str, str, bool]:
        header, mark, rest = text.partition(self._value_begin)
        trims = self._style.opening.endswith("\n")
        if not mark or (trims and not rest):
            return "", text, True
        name, _, flag = header.partition(self._name_end)
        self._name = name.strip()
        declared = {"true": True, "false": False}.get(flag.rpartition('"')[2])
        self._is_text = self._types.is_string(self._name) if declared is None else declared
        opened = '"' if self._is_text else ""
        piece = f"{self._separator}{dump(self._name)}:{opened}"
        self._separator = ","
        self._step = self._read_value
        return piece, rest.removeprefix("\n") if trims else rest, False

    def _read_value(self, text: str) -> tuple[str, str, bool]:
        value, mark, held = split_at(text, (self._value_end,))
        if mark is not None and self._style.closing.startswith("\n"):
            value = value.removesuffix("\n")
        if mark is not None:
            self._step = self._read_between
            if self._is_text:
                return dump(value)[1:-1] + '"', held, False
            return self._types.to_json(self._name, value), held, False
        if not self._is_text:
            return "", text, True
        if self._style.closing.startswith("\n") and value.endswith("\n"):
            value, held = value[:-1], "\n" + held
        return dump(value)[1:-1], held, True
