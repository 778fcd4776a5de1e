"""Finds tool calls in generated text, as it arrives."""

import re
from collections.abc import Generator, Sequence
from functools import lru_cache

from completions.chat.argument_readers import (
    JSONScanner,
    LiteralReader,
    Reading,
    TaggedReader,
    read_json,
)
from completions.chat.delta import DeltaWriter
from completions.chat.markers import compile_markers
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
_Trial = Generator[None, None, bool]
"""A reading that returns whether the text is what it expects."""


class _EndOfTextError(Exception):
    """No more text follows."""


class CallParser:
    """Finder of tool calls. However the text is split, the joined deltas are the same.

    Text that turns out not to be a call is content; nothing raises.
    """

    def __init__(
        self, tool_format: ToolFormat, tools: Sequence[Tool], *, only_first: bool = False
    ) -> None:
        """With `only_first`, calls come before all text, or not at all."""
        self._format = tool_format
        self._tools = {tool.name: tool for tool in tools}
        others = (segments[0].strip() for segments in tool_format.ways[1:])
        self._triggers = compile_markers(*tool_format.list_triggers(list(self._tools)), *others)
        self._trigger = ""
        self._only_first = only_first
        self._lead = ""  # the text before the first call, while that may come
        self._at = 0  # what precedes it in the text fits a call so far
        self._field: str | None = None  # which is read; "" for a literal, None for text
        self._ends: Sequence[str] = ()  # of that field
        style = tool_format.arguments
        self._last_ends = [style.before] if isinstance(style, Style) else []
        self._last_ends += _split(tool_format.end)[:1]  # of a name that no literal follows
        self._has_called = False
        self._is_cut = False
        self._is_idle = False  # nothing is held back, and no call has begun
        self.text = ""
        self.is_in_call = False
        """Whether arguments have begun and not ended."""
        self._reading = self._read()
        next(self._reading)

    def push(self, text: str, writer: DeltaWriter) -> None:
        if self._is_idle and not self._triggers.find_beginning(text):
            writer.add_text(text)
            return
        self._writer = writer
        self.text += text
        next(self._reading)

    def finish(self, writer: DeltaWriter, *, is_cut: bool = False) -> None:
        """Write the rest; no more text follows. Where a limit cut the text, the beginning of a call
        is not written as content."""
        self._writer, self._is_cut = writer, is_cut
        self._reading.throw(_EndOfTextError)

    def write(self, json: str) -> None:
        """Take the next piece of a call's arguments."""
        self._writer.add_arguments(json)

    def _read(self) -> Reading:
        try:
            while True:
                self._field = None
                yield from self._read_text()
                self._field = ""
                yield from self._read_section()
        except _EndOfTextError:
            is_call = self.is_in_call or self._has_called or (self._is_cut and self._may_call())
            if not is_call:
                self._add_text(len(self.text))
        yield

    def _may_call(self) -> bool:
        """Return whether what is left begins a call: its name may be that of a tool."""
        if self._field != NAME:
            return self._field is not None
        begun = self.text[self._at :].strip()
        return not self._tools or any(
            name.startswith(begun)
            or (begun.startswith(name) and end.startswith(begun[len(name) :].lstrip()))
            for name in self._tools
            for end in self._ends
        )

    def _add_text(self, length: int) -> None:
        """Write the beginning of the text as content."""
        if length:
            self._writer.add_text(self.text[:length])
        self.text, self._at = self.text[length:], 0

    def _commit(self) -> None:
        """Drop what was read of the text."""
        self.text, self._at = self.text[self._at :], 0

    def _read_text(self) -> Reading:
        """Read up to a trigger."""
        while True:
            if self._has_called:
                self._drop_separators()
            if not self._has_called:
                before, trigger, _ = self._triggers.split(self.text)
                if self._only_first and self._is_answer(before):
                    self._triggers, self._only_first = compile_markers(), False
                    before, trigger = self.text, None
                self._add_text(len(before))
                if trigger is not None:
                    self._trigger = trigger
                    return
            self._is_idle = not (self.text or self._has_called or self._only_first)
            yield
            self._is_idle = False

    def _is_answer(self, before: str) -> bool:
        """Return whether this text, before a call, shows that none follows."""
        lead = self._format.content[0]
        self._lead = (self._lead + before).lstrip()
        return not lead.startswith(self._lead) and bool(self._lead.removeprefix(lead).strip())

    def _drop_separators(self) -> None:
        """Drop what may stand between this call and the next one."""
        separator = self._format.separator.strip()
        self.text = self.text.lstrip()
        while separator and self.text.startswith(separator):
            self.text = self.text[len(separator) :].lstrip()
        self._has_called = separator.startswith(self.text)

    def _read_section(self) -> Reading:
        """Read calls, or write the trigger as content."""
        begin, end = self._format.section
        if not ((yield from self._match(begin)) and (yield from self._read_call())):
            self._add_text(max(self._at, len(self._trigger)))
            return
        while end:
            if (yield from self._match(end)):
                self._commit()
                return
            if not (yield from self._match(self._format.separator.strip())):
                return
            if not (yield from self._read_call()):
                self._at = 0
                return

    def _match(self, literal: str) -> _Trial:
        """Read a literal of the format. White space between its tokens is free."""
        at = self._at
        for token in _split(literal):
            while True:
                at = self._skip_spaces(at)
                if self.text.startswith(token, at):
                    at += len(token)
                    break
                if not token.startswith(self.text[at:]):
                    return False
                yield
        self._at = at
        return True

    def _skip_spaces(self, at: int) -> int:
        while self.text[at : at + 1] in (" ", "\t", "\r", "\n"):
            at += 1
        return at

    def _read_call(self) -> _Trial:
        start = self._at
        for segments in self._format.ways:
            self._at = start
            if (yield from self._read_segments(segments)):
                return True
        self._at = start
        return self._format.is_object and (yield from self._read_object())

    def _read_segments(self, segments: Sequence[str]) -> _Trial:
        """Read a call that is written this way."""
        name = ""
        for index, segment in enumerate(segments):
            if segment == ARGUMENTS:
                if self._format.arguments is None and not (yield from self._begins_object()):
                    return False
                self._commit()
                yield from self._read_arguments(name)
                return True
            if index % 2 == 0:
                if not (yield from self._match(segment)):
                    break
                continue
            self._field, self._ends = segment, _split(segments[index + 1])[:1] or self._last_ends
            value = yield from self._read_field()
            self._field = ""
            if value is None or (segment == NAME and not self._knows(value)):
                break
            name = value if segment == NAME else name
        return False

    def _knows(self, name: str) -> bool:
        """Return whether a tool has this name. A job of version 0.1 names none."""
        return not self._tools or name in self._tools

    def _read_field(self) -> Generator[None, None, str | None]:
        """Return a name or an id up to the first of its ends; None if it is none."""
        longest = _MAX_FIELD + max(map(len, self._ends))
        while True:
            text = self.text[self._at : self._at + longest]
            if found := [place for place in map(text.find, self._ends) if place >= 0]:
                value = text[: min(found)].strip()
                self._at += min(found)
                return value if _NAME.fullmatch(value) else None
            if len(text) == longest:
                return None
            yield

    def _begins_object(self) -> _Trial:
        while (at := self._skip_spaces(self._at)) == len(self.text):
            yield
        self._at = at
        return self.text[at] == "{"

    def _read_arguments(self, name: str) -> Reading:
        style, end = self._format.arguments, self._format.end
        self._begin_call(name)
        if style is None:
            yield from read_json(self)
        elif isinstance(style, Literals):
            yield from LiteralReader(self, style).read()
        else:
            schema = self._tools[name].read_schema if self._tools else {}
            first_line = end.strip().partition("\n")[0]
            yield from TaggedReader(self, style, first_line, schema).read()
        yield from self._read_end(end)

    def _begin_call(self, name: str) -> None:
        is_custom = bool(self._tools) and self._tools[name].is_custom
        self._writer.begin_call(name, is_custom=is_custom)
        self.is_in_call = True

    def _read_end(self, end: str) -> Reading:
        """Read the text after the arguments, and drop what else the model writes before it."""
        self.is_in_call, self._has_called = False, True
        if (yield from self._match(end)):
            self._commit()
            return
        mark = compile_markers(end.strip().rpartition("\n")[2])
        while True:
            _, found, self.text = mark.split(self.text)
            if found is not None:
                return
            yield

    def _read_object(self) -> _Trial:
        """Read a call whose object has other keys, or its keys in another order."""
        for segment in _split(self._format.segments[0]):
            if segment == "{":
                break
            yield from self._match(segment)
        if not (yield from self._begins_object()):
            return False
        if "{" in self._trigger:
            self._field = None  # any object begins like a call
        start = length = self._at
        scanner = JSONScanner()
        while not (end := scanner.find_end(self.text[length:])):
            length = len(self.text)
            yield
        self._at = length + end
        call = _parse_object(self.text[start : self._at])
        if call is None or not self._knows(call[0]):
            return False
        self._commit()
        self._begin_call(call[0])
        self.write(call[1])
        yield from self._read_end(self._format.end.strip()[1:])
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
