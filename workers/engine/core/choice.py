"""One choice: its tokens become text, and a stop rule ends it."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol, Self

from workers.engine.core.output import ChoiceDelta, ConstraintEffect, LimitEnding
from workers.engine.text.detokenizer import Detokenizer
from workers.engine.text.finish import Finish, FinishReason
from workers.engine.text.stop_checker import StopChecker


class GrammarState(Protocol):
    """A choice's position in its grammar."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing more may follow. Raises GrammarError."""

    @property
    def forced(self) -> int | None:
        """The only token that the grammar allows next, or None if there are several."""

    @property
    def is_slow(self) -> bool:
        """Whether following it takes too long to do so for a mere draft."""

    @property
    def is_accepting(self) -> bool:
        """Whether the text so far is one of the grammar's."""

    @property
    def closes(self) -> bool:
        """Whether the choice ends within its limit, if an end is known."""

    @property
    def closed_at(self) -> int | None:
        """How many tokens came before the way to the end took all that remained."""

    def leaves_only(self, token_id: int) -> bool:
        """Return whether the token is the only one that the grammar allows next, or that the limit
        leaves. It depends on the tokens before it alone."""

    def force(self, token_id: int) -> None:
        """Leave no choice but a token that may come next."""

    def review(self, token_id: int) -> int:
        """Return the token that takes the place of a sampled one, so that the choice can end in
        time."""

    @property
    def is_closing(self) -> bool:
        """Whether :meth:`review` may replace a token."""

    def allows(self, token_id: int) -> bool:
        """Return whether the token may come next."""

    def consume(self, token_id: int) -> bool:
        """Advance. Return True once nothing more may follow. Raises GrammarError."""

    def copy(self) -> Self:
        """Return an independent copy at the same position."""


class Choice:
    """The output of one sequence as a client sees it.

    The first of these ends it: stop string, stop regex, stop id or end of sequence, grammar,
    length. It is a pure function of its tokens, so replaying an earlier run's tokens restores it
    exactly.
    """

    def __init__(
        self,
        index: int,
        detokenizer: Detokenizer,
        stop_checker: StopChecker,
        grammar: GrammarState | None = None,
    ) -> None:
        self.index = index
        self.finish: Finish | None = None
        self.num_characters = 0  # in the text of all tokens, shown or held back
        self.num_forced = 0  # tokens that the grammar left no choice about, sampled or not
        self.effect: ConstraintEffect | None = None  # unless the request asks for it
        self.grammar = grammar
        self._ending: LimitEnding | None = None
        self.stop_checker = stop_checker
        self._detokenizer = detokenizer
        self._token_ids: list[int] = []
        self._forced: list[int] = []  # places in _token_ids
        self._text: list[str] = []

    @property
    def forced_token(self) -> int | None:
        """The only token that the grammar allows next, or None if there are several or none."""
        return self.grammar.forced if self.grammar is not None and self.finish is None else None

    def append(self, token_id: int) -> Finish | None:
        """Append a token, sampled or forced. Return why the choice ends, if it does.

        Raises GrammarError.
        """
        if self.grammar is not None:
            is_only = self.grammar.leaves_only(token_id)
            self.num_forced += is_only
            if is_only or token_id == self.forced_token:
                self._forced.append(len(self._token_ids))
        self._token_ids.append(token_id)
        self.stop_checker.count()
        self.finish = self._judge(token_id)
        if self.finish is not None and self.grammar is not None and self.grammar.closes:
            self._note_closing(self.finish, self.grammar)
        return self.finish

    def replay(self, token_ids: Iterable[int]) -> Finish | None:
        """Append tokens that an earlier run delivered. No delta returns them again."""
        for token_id in token_ids:
            if self.append(token_id) is not None:
                break
        self._token_ids, self._forced, self._text = [], [], []
        if self.finish is None and self.grammar is not None and self.grammar.is_complete:
            self.finish = self._close(Finish(FinishReason.STOP))  # it allows only the empty text
        if self.finish is None:  # a choice without tokens may be complete
            self.finish = self.stop_checker.check_length()
        return self.finish

    def take_delta(self) -> ChoiceDelta | None:
        """Return what is new since the last call, or None."""
        text = "".join(self._text)
        if not self._token_ids and not text and self.finish is None:
            return None
        delta = ChoiceDelta(self.index, self._token_ids, text, forced=self._forced)
        if self.finish is not None:
            delta.finish_reason, delta.matched_stop, delta.matched_stop_text = self.finish
            delta.limit_ending = self._ending
            if self.effect is not None:
                delta.effect = replace(self.effect, forced_tokens=self.num_forced)
        self._token_ids, self._forced, self._text = [], [], []
        return delta

    def _note_closing(self, finish: Finish, grammar: GrammarState) -> None:
        """Note whether the limit ended the choice, and if so whether its text is whole."""
        is_own_end = finish.reason is FinishReason.STOP and finish.matched_text is None
        if (
            is_own_end
            and not isinstance(finish.matched_stop, str)
            and grammar.closed_at is not None
        ):
            self.finish = finish = Finish(FinishReason.LENGTH)
        if finish.reason is FinishReason.LENGTH:
            is_whole = grammar.is_accepting
            self._ending = LimitEnding(is_whole, grammar.closed_at if is_whole else None)

    def _judge(self, token_id: int) -> Finish | None:
        if self.stop_checker.ends(token_id):
            return self._end(token_id)
        text = self._detokenizer.push(token_id)
        if text and (finish := self._show(text)) is not None:
            return finish
        if self.grammar is not None and self.grammar.consume(token_id):
            return self._close(Finish(FinishReason.STOP))
        finish = self.stop_checker.check_length()
        return finish and self._close(finish)

    def _end(self, token_id: int) -> Finish:
        """End at a stop id. Its own text is shown if stops are not trimmed, or if it completes a
        stop string or regex."""
        if not self.stop_checker.trims:
            finish = self._show(self._detokenizer.push(token_id))
            return finish or self._close(Finish(FinishReason.STOP, token_id))
        text, finish = self.stop_checker.peek_text(self._detokenizer.copy().push(token_id))
        if finish is None:
            return self._close(Finish(FinishReason.STOP, token_id))
        self._text.append(text)
        return finish

    def _close(self, finish: Finish) -> Finish:
        """Release the text held back. Even this text may complete a stop string."""
        matched = self._show(self._detokenizer.flush())
        if matched is not None:
            return matched
        text, matched = self.stop_checker.flush()
        self._text.append(text)
        return matched or finish

    def _show(self, text: str) -> Finish | None:
        if not text:
            return None
        self.num_characters += len(text)
        if not self.stop_checker.looks_at_text:
            self._text.append(text)
            return None
        shown, finish = self.stop_checker.check_text(text)
        if shown:
            self._text.append(shown)
        return finish
