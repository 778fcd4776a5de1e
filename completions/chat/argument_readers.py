"""Reads the arguments of a call, as its format writes them, to JSON while they arrive.

A reading takes text from its source, and waits at each `yield` for more. It may yield what pieces
it only passes on.
"""

import re
from collections.abc import Callable, Generator, Mapping
from typing import NamedTuple, Protocol

from completions.chat.argument_types import ArgumentTypes
from completions.chat.markers import Markers, compile_markers
from completions.chat.tools import dump, escape
from completions.contract import strict_json
from completions.grammars.schema.questions import Path
from completions.grammars.structural_tag.literals import PYTHON, Literals
from completions.grammars.structural_tag.parameters import Style

_JSON_MARKS = re.compile(r'\\.|["{}\[\]\\]', re.DOTALL)
_WORD_END = re.compile(r"[\s,\]})]")
_ESCAPE = re.compile(r'u[0-9a-fA-F]{4}|["\\/bfnrt]')
_HALF_ESCAPE = re.compile(r"(u[0-9a-fA-F]{0,3})?\Z")
_CONSTANTS = {"True": "true", "False": "false", "None": "null"}


class Plain(NamedTuple):
    """Pieces of text that need no reading."""

    find: Callable[[str], object]
    """Finds what ends them."""
    write: Callable[[str], object]
    """Takes one."""


Reading = Generator[Plain | None, None, None]


class Source(Protocol):
    """Text that arrives, and where the JSON that is read from it goes."""

    text: str
    """What arrived and is not read yet."""

    def write(self, json: str) -> None: ...


class JSONScanner:
    """Finder of the end of a JSON object."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self.is_escaped = False
        """Whether the first character of the text that follows is."""

    def find_end(self, text: str) -> int:
        """Return where the object ends in the text that follows; 0 if it goes on."""
        mark = ""
        for match in _JSON_MARKS.finditer(text, 1 if self.is_escaped else 0):
            mark = match[0]
            if mark == '"':
                self._in_string = not self._in_string
            elif not self._in_string and mark in "{[":
                self._depth += 1
            elif not self._in_string and mark in "]}":
                self._depth -= 1
                if self._depth == 0:
                    return match.end()
        self.is_escaped = mark == "\\" if text else self.is_escaped
        return 0


def read_json(source: Source) -> Reading:
    """Read a JSON object, which is passed on as it is."""
    scanner, plain = JSONScanner(), Plain(_JSON_MARKS.search, source.write)
    while not (end := scanner.find_end(source.text)):
        text, source.text = source.text, ""
        source.write(text)
        yield None if scanner.is_escaped else plain
    text, source.text = source.text[:end], source.text[end:]
    source.write(text)


def read_until(
    source: Source, markers: Markers, write: Callable[[str], object]
) -> Generator[Plain | None, None, str]:
    """Read text up to a marker, and return that."""
    plain = Plain(markers.find_beginning, write)
    while True:
        text, mark, source.text = markers.split(source.text)
        write(text)
        if mark is not None:
            return mark
        yield None if source.text else plain


class TaggedReader:
    """Reader of parameters in tags: declared strings piece by piece, other values once they are
    complete. Lists and objects may be tags too."""

    def __init__(
        self, source: Source, style: Style, end: str, schema: Mapping[str, object]
    ) -> None:
        self._source, self._style, self._end = source, style, end
        self._name_end = style.opening.partition("{")[0].rstrip("\n")
        self._value_begin = style.opening.rpartition("}")[2].rstrip("\n")
        self._begins_line = style.opening.endswith("\n")
        ends = style.closing.partition("{name}")[0], style.value_end
        self._text_ends = compile_markers(*ends)
        self._value_ends = compile_markers(*ends, style.before) if style.item else self._text_ends
        self._types = ArgumentTypes(schema)

    def read(self) -> Reading:
        """Read up to the text that ends a call."""
        style = self._style
        ends = compile_markers(style.before, self._end, style.value_end)
        yield from self._read_members(ends, (), "{}")
        self._source.text = self._end + self._source.text

    def _read_members(self, ends: Markers, path: Path, brackets: str) -> Reading:
        """Read the parameters of a call, or those that make a value, up to another marker."""
        source, style = self._source, self._style
        written = ""
        while True:
            mark = yield from read_until(source, ends, len)
            if mark == style.value_end and not path:
                continue
            if mark != style.before:
                source.write(brackets[1] if written else brackets)
                return
            while True:
                header, begin, text = source.text.partition(self._value_begin)
                if begin and (text or not self._begins_line):
                    break
                yield None
            source.text = text.removeprefix("\n") if self._begins_line else text
            name, _, flag = header.partition(self._name_end)
            is_item = brackets == "[]"
            key = "" if is_item else f"{dump(name.strip())}:"
            source.write(("," if written else brackets[0]) + key)
            written = brackets
            inner = (*path, None if is_item else name.strip())
            declared = style.is_text(flag.rpartition('"')[2])
            is_text = self._types.is_string(inner) if declared is None else declared
            yield from (self._read_text() if is_text else self._read_value(inner))

    def _read_text(self) -> Reading:
        source = self._source
        source.write('"')
        yield from read_until(source, self._text_ends, lambda text: source.write(escape(text)))
        source.write('"')

    def _read_value(self, path: Path) -> Reading:
        source, style, parts = self._source, self._style, list[str]()
        mark = yield from read_until(source, self._value_ends, parts.append)
        if mark == style.before:
            while self._value_begin not in source.text:
                yield None
            name = source.text.partition(self._value_begin)[0]
            is_list = name == style.item and self._types.allows("array", path)
            source.text = style.before + source.text
            ends = compile_markers(style.before, style.value_end)
            yield from self._read_members(ends, path, "[]" if is_list else "{}")
            return
        value = "".join(parts)
        if not self._types.allows("string", path):
            value = _respell(value) or self._types.find_empty(path)
        source.write(self._types.to_json(path, value))


def read_literals(source: Source, literals: Literals) -> Reading:
    """Read named arguments in literals, up to the bracket that closes them."""
    quotes = ('"', "'") if literals.has_json else (literals.quote,)
    closers, opener, is_key = list[str](), "{", True
    while True:
        source.text = text = source.text.lstrip()
        separator = ":" if closers else literals.assign
        if quote := next(filter(text.startswith, quotes), ""):
            source.text = text[len(quote) :]
            source.write(f'{opener}"')
            opener = ""
            yield from _read_string(source, quote, "\\" if literals.has_json else "")
            continue
        if any(each.startswith(text) for each in quotes):  # or there is no text
            yield None
            continue
        character, source.text = text[0], text[1:]
        if is_key and character == separator:
            source.write(":")
            is_key = False
        elif character == ",":
            source.write(",")
            is_key = closers[-1:] != ["]"]
        elif character in "[{":
            source.write(opener + character)
            closers.append("]" if character == "[" else "}")
            opener, is_key = "", character == "{"
        elif character in "]})":
            if not closers:
                source.text = text
                source.write(opener + "}")
                return
            closers.pop()
            source.write("]" if character == "]" else "}")
            is_key = False
        else:
            source.text = text
            word = _WORD_END.split(text, 1)[0]
            word = word.partition(separator)[0] if is_key else word
            if word == text:
                yield None
                continue
            source.text = text[len(word) :]
            value = _CONSTANTS.get(word, word)
            source.write(opener + (value if not is_key and _is_json(value) else dump(word)))
            opener = ""


def _read_string(source: Source, quote: str, escapes: str) -> Reading:
    """Read a string whose first quote was read. In it, one of `escapes` escapes what follows."""

    def write(text: str) -> None:
        source.write(escape(text))

    ends = compile_markers(quote, *escapes)
    while (mark := (yield from read_until(source, ends, write))) != quote:
        while not (known := _ESCAPE.match(source.text)) and _HALF_ESCAPE.match(source.text):
            yield None
        if known:
            source.text = source.text[known.end() :]
            source.write(mark + known[0])
        else:
            text, source.text = source.text[0], source.text[1:]
            write(text)
    source.write('"')


class _Text:
    """A source whose text is there."""

    def __init__(self, text: str) -> None:
        self.text, self.json = text, ""

    def write(self, json: str) -> None:
        self.json += json


def _respell(text: str) -> str:
    """Return a value that is spelled as Python's as JSON; any other text as it is. Templates that
    print values write them so, and models learn it."""
    if _is_json(text):
        return text
    source = _Text(f"_={text.strip()})")
    is_whole = next(read_literals(source, PYTHON), source) is source and source.text == ")"
    value = source.json.removeprefix('{"_":').removesuffix("}")
    return value if is_whole and value[:1] != '"' and _is_json(value) else text


def _is_json(text: str) -> bool:
    try:
        strict_json.loads(text)
    except strict_json.StrictJSONError:
        return False
    return True
