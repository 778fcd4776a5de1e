"""Splits generated text into free text and tool calls, in text order, as it arrives."""

import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from completions.chat.argument_readers import (
    ArgumentReader,
    JSONReader,
    LiteralReader,
    TaggedReader,
)
from completions.chat.markers import split_at
from completions.chat.tool_format import ARGUMENTS, NAME, ToolFormat
from completions.chat.tools import Tool, dump
from completions.contract import strict_json
from completions.grammars.structural_tag.literals import Literals
from completions.grammars.structural_tag.parameters import Style

_TOKENS = re.compile(r'<[^<>\s]+>|<?[^\s{}\[\]:,"<]+|[{}\[\]:,"<]')
_NAME = re.compile(r'[^\s"\\{}()]{1,256}')
_MAX_FIELD = 256
"""Characters of a name or id."""
_OBJECT_KEYS = (("name", "tool_name"), ("arguments", "parameters"))
"""The keys of a call that is an object, in any order."""


@dataclass(frozen=True, slots=True)
class Text:
    """Part of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A tool is called; its arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """The next piece of the JSON arguments of the latest call."""

    text: str


Part = Text | CallStart | Arguments
Reading = Generator[None, None, bool]
"""Reads from the buffer, waits at each `yield` for more text, and returns whether it succeeded."""


class _EndOfTextError(Exception):
    """No more text follows."""


class CallParser:
    """Finder of tool calls. However the text is split, the joined parts are the same.

    Text that turns out not to be a call becomes Text; nothing raises.
    """

    def __init__(
        self, tool_format: ToolFormat, tools: Sequence[Tool], *, only_first: bool = False
    ) -> None:
        """With `only_first`, calls come before all text, or not at all."""
        self._format = tool_format
        self._schemas = {tool.name: tool.read_schema for tool in tools}
        others = (segments[0].strip() for segments in tool_format.ways[1:])
        self._triggers = [*tool_format.list_triggers(list(self._schemas)), *others]
        self._trigger = ""
        self._only_first = only_first
        self._lead = ""  # the text before the first call, while that may come
        self._buffer = ""
        self._at = 0  # what precedes it in the buffer fits a call so far
        self._is_last = False
        self._is_cut = False
        self._begun: str | None = None  # the field that is read; "" for a literal, None for text
        self._ends: Sequence[str] = ()  # of that field
        self._has_called = False
        self._parts: list[Part] = []
        self.is_in_call = False
        """Whether arguments have begun and not ended."""
        self._reading = self._read()
        next(self._reading)

    def push(self, text: str) -> list[Part]:
        self._buffer += text
        next(self._reading)
        parts, self._parts = self._parts, []
        return parts

    def finish(self, *, is_cut: bool = False) -> list[Part]:
        """Return the last parts; no more text follows. Where a limit cut the text, the beginning of
        a call is not returned as text."""
        self._is_last, self._is_cut = True, is_cut
        return self.push("")

    def _read(self) -> Generator[None, None, None]:
        try:
            while True:
                self._begun = None
                yield from self._read_text()
                self._begun = ""
                yield from self._read_section()
        except _EndOfTextError:
            is_call = self.is_in_call or self._has_called or (self._is_cut and self._may_call())
            if not is_call:
                self._add_text(len(self._buffer))
        while True:
            yield

    def _may_call(self) -> bool:
        """Return whether what is left begins a call: its name may be that of a tool."""
        if self._begun != NAME:
            return self._begun is not None
        begun = self._buffer[self._at :].strip()
        return not self._schemas or any(
            name.startswith(begun)
            or (begun.startswith(name) and self._may_end(begun[len(name) :].lstrip()))
            for name in self._schemas
        )

    def _may_end(self, text: str) -> bool:
        return any(end.startswith(text) for end in self._ends)

    def _wait(self) -> Generator[None, None, None]:
        if self._is_last:
            raise _EndOfTextError
        yield

    def _add_text(self, length: int) -> None:
        """Return the beginning of the buffer as text."""
        if length:
            self._parts.append(Text(self._buffer[:length]))
            self._buffer = self._buffer[length:]
        self._at = 0

    def _commit(self) -> None:
        """Drop what was read of the buffer."""
        self._buffer, self._at = self._buffer[self._at :], 0

    def _read_text(self) -> Generator[None, None, None]:
        """Read up to a trigger."""
        while True:
            if self._has_called:
                self._drop_separators()
                if self._has_called:
                    yield from self._wait()
                    continue
            before, trigger, _ = split_at(self._buffer, self._triggers)
            if self._only_first and self._is_answer(before):
                self._triggers, self._only_first = [], False
                before, trigger = self._buffer, None
            self._add_text(len(before))
            if trigger is not None:
                self._trigger = trigger
                return
            yield from self._wait()

    def _drop_separators(self) -> None:
        """Drop what may stand between this call and the next one."""
        separator = self._format.separator.strip()
        self._buffer = self._buffer.lstrip()
        while separator and self._buffer.startswith(separator):
            self._buffer = self._buffer[len(separator) :].lstrip()
        self._has_called = separator.startswith(self._buffer)

    def _read_section(self) -> Generator[None, None, None]:
        """Read calls, or return the trigger as text."""
        begin, end = self._format.section
        if (yield from self._match(begin)) and (yield from self._read_call()):
            self._has_called = True
            while end:
                if (yield from self._match(end)):
                    self._commit()
                    return
                if not (yield from self._match(self._format.separator.strip())):
                    return
                if not (yield from self._read_call()):
                    self._at = 0
                    return
        else:
            self._add_text(max(self._at, len(self._trigger)))

    def _match(self, literal: str) -> Reading:
        """Read a literal of the format. White space between its tokens is free."""
        at = self._at
        for token in _split(literal):
            while True:
                at = self._skip_spaces(at)
                rest = self._buffer[at : at + len(token)]
                if rest == token:
                    at += len(token)
                    break
                if not token.startswith(rest):
                    return False
                yield from self._wait()
        self._at = at
        return True

    def _skip_spaces(self, at: int) -> int:
        while self._buffer[at : at + 1] in (" ", "\t", "\r", "\n"):
            at += 1
        return at

    def _read_call(self) -> Reading:
        start = self._at
        for segments in self._format.ways:
            self._at = start
            if (yield from self._read_segments(segments)):
                return True
        self._at = start
        return self._format.is_object and (yield from self._read_object(self._format.end))

    def _read_segments(self, segments: Sequence[str]) -> Reading:
        """Read a call that is written this way."""
        name = ""
        for index, segment in enumerate(segments):
            if segment == ARGUMENTS:
                begins = yield from self._peek_arguments()
                return begins and (yield from self._read_arguments(name))
            if index % 2 == 0:
                if not (yield from self._match(segment)):
                    break
                continue
            ends = _split(segments[index + 1])[:1] or self._list_ends()
            self._begun, self._ends = segment, ends
            value = yield from self._read_field(ends)
            self._begun = ""
            if value is None or (segment == NAME and not self._knows(value)):
                break
            name = value if segment == NAME else name
        return False

    def _is_answer(self, before: str) -> bool:
        """Return whether this text, before a call, shows that none follows."""
        lead = self._format.content[0]
        self._lead = (self._lead + before).lstrip()
        return not lead.startswith(self._lead) and bool(self._lead.removeprefix(lead).strip())

    def _knows(self, name: str) -> bool:
        """Return whether a tool has this name. A job of version 0.1 names none."""
        return not self._schemas or name in self._schemas

    def _list_ends(self) -> Sequence[str]:
        """Return what may follow a name that only arguments or the end of the call end."""
        style = self._format.arguments
        before = [style.before] if isinstance(style, Style) else []
        return [*before, *_split(self._format.end)[:1]]

    def _read_field(self, ends: Sequence[str]) -> Generator[None, None, str | None]:
        """Return a name or an id up to the first of the ends; None if it is none."""
        longest = _MAX_FIELD + max(map(len, ends))
        while True:
            text = self._buffer[self._at : self._at + longest]
            found = [place for place in map(text.find, ends) if place >= 0]
            if found:
                value = text[: min(found)]
                self._at += min(found)
                return value.strip() if _NAME.fullmatch(value.strip()) else None
            if len(text) == longest:
                return None
            yield from self._wait()

    def _peek_arguments(self) -> Reading:
        """Return whether arguments begin here: as JSON, they are an object."""
        if self._format.arguments is not None:
            return True
        while (at := self._skip_spaces(self._at)) == len(self._buffer):
            yield from self._wait()
        self._at = at
        return self._buffer[at] == "{"

    def _make_reader(self, name: str) -> ArgumentReader:
        style = self._format.arguments
        if style is None:
            return JSONReader()
        if isinstance(style, Literals):
            return LiteralReader(style)
        end = self._format.end.strip().partition("\n")[0]
        return TaggedReader(style, end, self._schemas.get(name, {}))

    def _read_arguments(self, name: str) -> Reading:
        self._commit()
        self._parts.append(CallStart(name))
        self.is_in_call = True
        reader = self._make_reader(name)
        while True:
            text, self._buffer = reader.read(self._buffer)
            if text:
                self._parts.append(Arguments(text))
            if reader.is_done:
                break
            yield from self._wait()
        yield from self._read_end(self._format.end)
        return True

    def _read_end(self, end: str) -> Generator[None, None, None]:
        """Read the text after the arguments, and drop what else the model writes before it."""
        self.is_in_call, self._has_called = False, True
        if (yield from self._match(end)):
            self._commit()
            return
        mark = end.strip().rpartition("\n")[2]
        while True:
            _, found, self._buffer = split_at(self._buffer, (mark,))
            if found is not None:
                return
            yield from self._wait()

    def _read_object(self, end: str) -> Reading:
        """Read a call whose object has other keys, or its keys in another order."""
        for segment in _split(self._format.segments[0]):
            if segment == "{":
                break
            yield from self._match(segment)
        while (start := self._skip_spaces(self._at)) == len(self._buffer):
            yield from self._wait()
        if self._buffer[start] != "{":
            return False
        if "{" in self._trigger:
            self._begun = None  # any object begins like a call
        scanner, length = JSONReader(), 0
        while not scanner.is_done:
            length += len(scanner.read(self._buffer[start + length :])[0])
            if not scanner.is_done:
                yield from self._wait()
        self._at = start + length
        call = _parse_object(self._buffer[start : self._at])
        if call is None or not self._knows(call[0]):
            return False
        self._commit()
        self._parts += [CallStart(call[0]), Arguments(call[1])]
        yield from self._read_end(end.strip()[1:])
        return True


def _parse_object(text: str) -> tuple[str, str] | None:
    """Return the name and arguments of a call."""
    try:
        value = strict_json.loads(text)
    except strict_json.StrictJSONError:
        return None
    if not isinstance(value, dict):
        return None
    name, arguments = (
        next((value[key] for key in keys if key in value), None) for keys in _OBJECT_KEYS
    )
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return None
    return name, dump(arguments)


@lru_cache
def _split(literal: str) -> list[str]:
    """Return a literal's tokens, between which white space is free."""
    return _TOKENS.findall(literal)
