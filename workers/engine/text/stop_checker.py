"""Decides when a choice ends: stop strings and regexes, end and stop ids, length.

The decision is a pure function of the choice's tokens.
"""

from completions.contract.sampling import SamplingParams
from completions.contract.stop_regex.automaton import RegexSearch, compile_all
from workers.engine.text.content_stops import ContentSplitter, ContentStops
from workers.engine.text.finish import Finish, FinishReason
from workers.engine.text.stop_text import StopText, StringSearch, compile_string


class StopChecker:
    """The stop rules of one choice that look at its tokens and its text.

    Before ``min_tokens``, only the length ends a choice. ``max_output_tokens`` is the smaller of
    ``max_tokens`` and the room that the prompt leaves in the context. Raises RegexError.
    """

    def __init__(
        self, sampling: SamplingParams, eos_token_ids: frozenset[int], max_output_tokens: int
    ) -> None:
        stop_ids = frozenset(sampling.stop_token_ids)
        self.end_ids = stop_ids if sampling.ignore_eos else stop_ids | eos_token_ids
        self._ignored_ids = eos_token_ids if sampling.ignore_eos else frozenset[int]()
        self._early_ids = self.end_ids | self._ignored_ids
        self._text = _stop_text(sampling) if sampling.stop or sampling.stop_regex else None
        self.trims = not sampling.no_stop_trim
        self._min_tokens = sampling.min_tokens
        self._max_output_tokens = max_output_tokens
        self.num_tokens = 0

    def count(self) -> None:
        """Count one more sampled token."""
        self.num_tokens += 1

    @property
    def may_end(self) -> bool:
        return self.num_tokens >= self._min_tokens

    def ids_to_avoid(self, num_more: int = 0) -> frozenset[int]:
        """Ids that a grammar should not offer after ``num_more`` further tokens, since any end of
        sequence ends its text."""
        if self.num_tokens + num_more < self._min_tokens:
            return self._early_ids
        return self._ignored_ids

    def ends(self, token_id: int) -> bool:
        return token_id in self.end_ids and self.may_end

    @property
    def looks_at_text(self) -> bool:
        return self._text is not None

    def check_text(self, text: str) -> tuple[str, Finish | None]:
        """Add text. Return what may be shown of it and of the text held back before."""
        if self._text is None:
            return text, None
        shown, stop = self._text.push(text, armed=self.may_end)
        return shown, None if stop is None else Finish(FinishReason.STOP, *stop)

    def peek_text(self, text: str) -> tuple[str, Finish | None]:
        """Return what :meth:`check_text` would, without changing the state."""
        kept = self._text
        if kept is None:
            return text, None
        self._text = kept.copy()
        try:
            return self.check_text(text)
        finally:
            self._text = kept

    def check_length(self) -> Finish | None:
        if self.num_tokens < self._max_output_tokens:
            return None
        return Finish(FinishReason.LENGTH)

    def flush(self) -> tuple[str, Finish | None]:
        """Return the text held back for a stop that can no longer come, as :meth:`check_text`
        does."""
        if self._text is None:
            return "", None
        shown, stop = self._text.finish(armed=self.may_end)
        return shown, None if stop is None else Finish(FinishReason.STOP, *stop)


def _stop_text(sampling: SamplingParams) -> StopText | ContentStops:
    regexes = [RegexSearch(regex) for regex in compile_all(sampling.stop_regex)]
    strings = [StringSearch(compile_string(stop)) for stop in sampling.stop]
    stops = StopText(strings, regexes, trim=not sampling.no_stop_trim)
    spans = sampling.stop_spans
    return ContentStops(stops, ContentSplitter(spans)) if spans else stops
