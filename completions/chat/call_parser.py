"""Finds tool calls in generated text, as it arrives."""

import re
from collections.abc import Generator, Sequence
from functools import lru_cache
from typing import NamedTuple

from completions.chat.argument_readers import (
    JSONScanner,
    Plain,
    Reading,
    TaggedReader,
    read_json,
    read_literals,
    read_until,
)
from completions.chat.delta import DeltaWriter
from completions.chat.markers import compile_markers
from completions.chat.tool_format import ID, NAME, ToolFormat
from completions.chat.tools import Tool, dump
from completions.contract import strict_json
from completions.grammars.structural_tag.literals import Literals
from completions.grammars.structural_tag.parameters import Style

_TOKENS = re.compile(r'\{(?:name|id)\}|<[^<>\s]+>|<?[^\s{}\[\]:,"<]+|[{}\[\]:,"<]')
_SPACE = r"[ \t\r\n]{0,1000}"
"""White space between tokens, which is free."""
_FIELD = r'[^\s"\\{}()]'
"""A character of a name or an id."""
_OBJECT_KEYS = (("name", "tool_name"), ("arguments", "parameters"))
"""The keys of a call that is an object, in any order."""


class _EndOfTextError(Exception):
    """No more text follows."""


class _Expected(NamedTuple):
    """A text of the format, with its fields."""

    whole: re.Pattern[str]
    begun: re.Pattern[str]
    """Matches what may become it."""


class CallParser:
    """Finder of tool calls. However the text is split, the joined deltas are the same.

    Text that turns out not to be a call is content; nothing raises.
    """

    writer: DeltaWriter

    def __init__(
        self, tool_format: ToolFormat, tools: Sequence[Tool], *, only_first: bool = False
    ) -> None:
        """With `only_first`, calls come before all text, or not at all."""
        self._format = tool_format
        self._tools = {tool.name: tool for tool in tools}
        self._triggers = compile_markers(*tool_format.list_triggers(list(self._tools)))
        self._trigger = ""
        self._only_first = only_first
        self._lead = ""  # the text before the first call, while that may come
        self._expected: _Expected | None = None  # the beginning of a call
        self._is_object = False  # what is read may be a call with keys in another order
        self._has_called = False
        self._is_cut = False
        self._plain: Plain | None = None
        self.text = ""
        self.is_in_call = False
        """Whether arguments have begun and not ended."""
        self._reading = self._read()

    def start(self, writer: DeltaWriter) -> None:
        """Write the message to this writer."""
        self.writer = writer
        self.push("")

    def push(self, text: str) -> None:
        plain = self._plain
        if plain is not None and not plain.find(text):
            plain.write(text)
        else:
            self.text += text
            self._plain = next(self._reading)

    def finish(self, *, is_cut: bool = False) -> None:
        """Write the rest; no more text follows. Where a limit cut the text, the beginning of a call
        is not written as content."""
        self._is_cut = is_cut
        self._reading.throw(_EndOfTextError)

    def write(self, json: str) -> None:
        """Take the next piece of a call's arguments."""
        self.writer.add_arguments(json)

    def _read(self) -> Reading:
        try:
            while True:
                yield from self._read_text()
                yield from self._read_section()
                self._expected, self._is_object = None, False
        except _EndOfTextError:
            may_call = self._expected or self._is_object or not self.writer.has_content
            if not (self.is_in_call or self._has_called or (self._is_cut and may_call)):
                self._add_text(len(self.text))
        yield None

    def _add_text(self, length: int) -> None:
        """Write the beginning of the text as content."""
        if length:
            self.writer.add_text(self._take(length))

    def _take(self, length: int) -> str:
        """Return the beginning of the text, which is read."""
        text, self.text = self.text[:length], self.text[length:]
        return text

    def _read_text(self) -> Reading:
        """Read up to a trigger."""
        plain = Plain(self._triggers.find_beginning, self.writer.add_text)
        while True:
            if self._has_called:
                self._drop_separators()
            if not self._has_called:
                before, trigger, _ = self._triggers.split(self.text)
                if self._only_first and self._is_answer(before):
                    self._triggers, self._only_first = compile_markers(), False
                    plain = Plain(self._triggers.find_beginning, self.writer.add_text)
                    before, trigger = self.text, None
                self._add_text(len(before))
                if trigger is not None:
                    self._trigger = trigger
                    return
            is_plain = not (self.text or self._has_called or self._only_first)
            yield plain if is_plain else None

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
        if not (yield from self._read_call(begin)):
            self._add_text(len(self._trigger))
            return
        while end:
            if match := (yield from self._expect(_compile((end,)))):
                self._take(match.end())
                return
            if not (yield from self._read_call(self._format.separator.strip())):
                return

    def _expect(self, expected: _Expected) -> Generator[Plain | None, None, re.Match[str] | None]:
        """Wait for a text with the name of a tool, and return its match; None if something else
        comes."""
        while not (match := expected.whole.match(self.text)):
            begun = expected.begun.fullmatch(self.text)
            if begun is None or not self._may_know(begun):
                return None
            yield None
        return match if self._may_know(match) else None

    def _may_know(self, match: re.Match[str]) -> bool:
        """Return whether the name in a text is that of a tool, or may become it. A job of version
        0.1 names no tools."""
        name = match.groupdict().get("name")
        if name is None or not self._tools:
            return True
        is_whole = match.end("name") < len(self.text)
        return name in self._tools if is_whole else any(t.startswith(name) for t in self._tools)

    def _read_call(self, before: str) -> Generator[Plain | None, None, bool]:
        """Read a call that follows a text, and return whether it is one."""
        style, end = self._format.arguments, self._format.end
        ends = ("{",) if style is None else ()
        for *begin, _, _ in self._format.ways:
            if isinstance(style, Style) and not begin[-1].strip():  # nothing ends the name
                ends = style.before, *_TOKENS.findall(end)[:1]
            self._expected = _compile((before, *begin), ends)
            if match := (yield from self._expect(self._expected)):
                self._take(match.end())
                yield from self._read_arguments(match["name"])
                return True
        self._expected = None
        return self._format.is_object and (yield from self._read_object(before))

    def _read_arguments(self, name: str) -> Reading:
        style, end = self._format.arguments, self._format.end
        self._begin_call(name)
        if style is None:
            yield from read_json(self)
        elif isinstance(style, Literals):
            yield from read_literals(self, style)
        else:
            schema = self._tools[name].read_schema if self._tools else {}
            first_line = end.strip().partition("\n")[0]
            yield from TaggedReader(self, style, first_line, schema).read()
        yield from self._read_end(end)

    def _begin_call(self, name: str) -> None:
        is_custom = bool(self._tools) and self._tools[name].is_custom
        self.writer.begin_call(name, is_custom=is_custom)
        self.is_in_call = True

    def _read_end(self, end: str) -> Reading:
        """Read the text after the arguments, and drop what else the model writes before it."""
        self.is_in_call, self._has_called = False, True
        if match := (yield from self._expect(_compile((end,)))):
            self._take(match.end())
        else:
            yield from read_until(self, compile_markers(end.strip().rpartition("\n")[2]), len)

    def _read_object(self, before: str) -> Generator[Plain | None, None, bool]:
        """Read a call whose object has other keys, or its keys in another order."""
        begin = self._format.segments[0].partition("{")[0]
        if not (match := (yield from self._expect(_compile((before, begin), ("{",))))):
            return False
        self._is_object = "{" not in self._trigger  # else any object begins like a call
        scanner, length = JSONScanner(), match.end()
        while not (end := scanner.find_end(self.text[length:])):
            length = len(self.text)
            yield None
        call = _parse_object(self.text[match.end() : length + end])
        if call is None or (self._tools and call[0] not in self._tools):
            return False
        self._take(length + end)
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


@lru_cache(1024)
def _compile(texts: tuple[str, ...], ends: tuple[str, ...] = ()) -> _Expected:
    """Return what matches texts and fields in turn, before one of the ends."""
    whole = f"{_SPACE}(?={'|'.join(map(re.escape, ends))})" if ends else ""
    begun = f"{_SPACE}(?:{'|'.join(_list_beginnings(*ends))})?" if ends else ""
    after = "|".join(map(re.escape, ends))
    for token in reversed([token for text in texts for token in _TOKENS.findall(text)]):
        if token in (NAME, ID):
            one, beginnings = rf"(?P<{token[1:-1]}>(?:(?!{after}){_FIELD}){{1,256}}?)", list[str]()
        else:
            one, beginnings = re.escape(token), _list_beginnings(token)
        after = one
        whole = f"{_SPACE}{one}{whole}"
        begun = f"{_SPACE}(?:{'|'.join([one + begun, *beginnings])})?"
    return _Expected(re.compile(whole), re.compile(begun))


def _list_beginnings(*tokens: str) -> list[str]:
    return [re.escape(token[:length]) for token in tokens for length in range(1, len(token))]
