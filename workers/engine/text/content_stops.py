"""Finds stops in the content of a text, and not in the thoughts and tool calls around it."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Self

from completions.contract.stop_spans import StopSpan
from workers.engine.text.stop_text import StopText, StringSearch, TextStop, compile_string


class _Brackets:
    """Whether a JSON text is outside of strings and brackets."""

    def __init__(self) -> None:
        self.depth = 0
        self._in_string = self._escaped = False

    @property
    def outside(self) -> bool:
        return self.depth == 0 and not self._in_string

    def step(self, char: str) -> None:
        if self._in_string:
            self._in_string = self._escaped or char != '"'
            self._escaped = char == "\\" and not self._escaped
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self.depth += 1
        elif char in "}]":
            self.depth -= 1

    def copy(self) -> Self:
        clone = type(self)()
        clone.depth, clone._in_string, clone._escaped = self.depth, self._in_string, self._escaped
        return clone


class _OpenSpan:
    """The search for the end of a span."""

    def __init__(self, span: StopSpan) -> None:
        self.span = span
        self._closing = StringSearch(compile_string(span.closing))
        self._brackets = _Brackets()
        for char in span.opening:
            self._brackets.step(char)

    def ends_with(self, char: str) -> bool:
        """Add a character. Return whether it completes the closing mark."""
        self._brackets.step(char)
        is_closed = self._closing.step(char) > 0
        return is_closed and (self._brackets.outside or not self.span.is_json)

    def copy(self) -> Self:
        clone = type(self)(self.span)
        clone._closing, clone._brackets = self._closing.copy(), self._brackets.copy()
        return clone


class ContentSplitter:
    """Splits a text that arrives in pieces into content and everything else. It holds back what may
    become the opening mark of a span."""

    def __init__(self, spans: Sequence[StopSpan]) -> None:
        self._spans = [span for span in spans if span.opening]
        self._openings = [StringSearch(compile_string(span.opening)) for span in self._spans]
        self._open = next((_OpenSpan(span) for span in spans if not span.opening), None)
        self._ended: StopSpan | None = None  # until content follows it
        self._separator = ""  # its beginning, held back
        self._held = ""

    def push(self, text: str) -> Iterator[tuple[str, bool]]:
        """Pieces of the text, and whether each is content."""
        if text and not (self._open or self._ended or self._held) and not self._may_open(text):
            yield text, True  # the common case, in a third of the time
            return
        parts = (part for char in text for part in self._step(char))
        for is_content, group in groupby(parts, key=lambda part: part[1]):
            yield "".join(piece for piece, _ in group), is_content

    def flush(self) -> tuple[str, str]:
        """Return what was held back once no more text follows: what is no content, and content."""
        separator, held = self._separator, self._held
        self._separator = self._held = ""
        return separator, held

    def copy(self) -> Self:
        clone = type(self)(self._spans)
        clone._openings = [opening.copy() for opening in self._openings]
        clone._open = self._open and self._open.copy()
        clone._ended, clone._separator = self._ended, self._separator
        clone._held = self._held
        return clone

    def _may_open(self, text: str) -> bool:
        return any(span.opening[0] in text for span in self._spans)

    def _step(self, char: str) -> Iterable[tuple[str, bool]]:
        if self._open is not None:
            if self._open.ends_with(char):
                self._ended, self._open = self._open.span, None
            return ((char, False),)
        if self._ended is not None:
            return self._step_behind(self._ended, char)
        self._held += char
        opened = None  # of those that the character completes, the one that began first
        for span, opening in zip(self._spans, self._openings, strict=True):
            if opening.step(char) and (not opened or len(span.opening) > len(opened.opening)):
                opened = span
        if opened is not None:
            return self._enter(opened)
        return self._release(max((opening.num_held for opening in self._openings), default=0))

    def _step_behind(self, span: StopSpan, char: str) -> Iterable[tuple[str, bool]]:
        """Drop what may stand between this span and the next one."""
        begun, self._separator = self._separator + char, ""
        if begun == span.separator or (begun == char and char in span.dropped):
            return ((begun, False),)
        if span.separator.startswith(begun):
            self._separator = begun
            return ()
        self._ended = None
        return [part for each in begun for part in self._step(each)]

    def _enter(self, span: StopSpan) -> Iterable[tuple[str, bool]]:
        before = self._held.removesuffix(span.opening)
        self._held, self._open = "", _OpenSpan(span)
        for opening in self._openings:
            opening.restart()
        return ((before, True), (span.opening, False)) if before else ((span.opening, False),)

    def _release(self, num_held: int) -> Iterable[tuple[str, bool]]:
        cut = len(self._held) - num_held
        released, self._held = self._held[:cut], self._held[cut:]
        return ((released, True),) if released else ()


class ContentStops:
    """A StopText that sees only content. A stop does not extend beyond a span."""

    def __init__(self, stops: StopText, content: ContentSplitter) -> None:
        self._stops, self._content = stops, content

    def push(self, text: str, armed: bool = True) -> tuple[str, TextStop | None]:
        shown = []
        for piece, is_content in self._content.push(text):
            if not is_content:
                shown += [self._stops.restart(), piece]
                continue
            part, stop = self._stops.push(piece, armed)
            shown.append(part)
            if stop is not None:
                return "".join(shown), stop
        return "".join(shown), None

    def finish(self, armed: bool = True) -> tuple[str, TextStop | None]:
        separator, content = self._content.flush()
        shown, stop = self._stops.push(content, armed)
        rest = self._stops.flush() if stop is None else ""
        return separator + shown + rest, stop

    def copy(self) -> Self:
        return type(self)(self._stops.copy(), self._content.copy())
