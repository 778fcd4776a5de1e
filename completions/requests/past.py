"""What a session holds up to a choice, and what one more turn adds to it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import orjson
from msgspec import Struct

from completions.contract.json_lines import compress_lines, decompress_first, decompress_lines
from completions.exceptions import FieldError
from completions.jobs.new_job import SessionTurn

INHERITED = ("tools", "thinking", "reasoning_effort", "chat_template_kwargs")
"""Fields of a chat that a later turn of its session repeats by itself: the prompt depends on
them."""


class TurnChoice(Struct, frozen=True, omit_defaults=True):
    """One answer of a turn."""

    token_ids: Sequence[int]
    finish_reason: str | None = None
    message: Mapping[str, object] | None = None
    """The answer as a chat has it; None for a completion."""


class Computation(Struct, frozen=True):
    """What computed the answers of a turn. Only exports read it: its grammar may be long."""

    request: msgspec.Raw
    """What the worker computed, without the prompt: a `JobRequest`, maybe of another version."""
    receipt: Mapping[str, object] | None
    """The receipt without the output's ids; None if the model's files were gone."""

    @classmethod
    def decompress(cls, content: bytes | memoryview) -> "Computation | None":
        """Read it from the content of a turn; None before the answers are there."""
        _, *lines = decompress_lines(content)
        return msgspec.json.decode(lines[0], type=cls) if lines else None


class Turn(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a turn adds to its session: stored with its job, and again with the answers and their
    computation."""

    token_ids: Sequence[int]
    """What was given, beyond what the session had."""
    text: str = ""
    """The same as text, for messages."""
    messages: Sequence[Mapping[str, object]] | None = None
    """The messages that were given; None for token ids."""
    fields: Mapping[str, object] = {}
    """INHERITED fields of the request."""
    drift: int | None = None
    """The first message that the template would write in another way."""
    is_rebased: bool = False
    """Whether `token_ids` are the whole prompt, in place of what the session had."""
    choices: Sequence[TurnChoice] = ()
    """The answers, once the turn has ended."""

    def compress(self, computation: Computation | None = None) -> bytes:
        documents = [self] if computation is None else [self, computation]
        return compress_lines(map(msgspec.json.encode, documents))

    @classmethod
    def decompress(cls, content: bytes | memoryview) -> "Turn":
        return msgspec.json.decode(decompress_first(content), type=cls)


@dataclass(frozen=True, slots=True)
class Answered:
    """A turn of the past, and which of its answers the conversation goes on from."""

    turn: Turn
    index: int
    answer_text: str
    """What the answer's tokens read as, special ones included."""

    @property
    def choice(self) -> TurnChoice:
        return self.turn.choices[self.index]


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The turns of a session from its beginning to a choice."""

    session_id: str
    model: str
    """The session's model; empty for a session that the turn makes."""
    seconds: int
    """How long the session is kept after a turn."""
    on_drift: str
    after_turn: str = ""
    after_index: int = 0
    newest_turn: str | None = None
    """The newest turn, which no other may follow meanwhile; None if the client chose `after`."""
    turns: Sequence[Answered] = ()
    token_ids: Sequence[int] = field(init=False)
    """All tokens so far, given and sampled, id for id."""

    def __post_init__(self) -> None:
        ids: list[int] = []
        for each in self.turns:
            ids = [] if each.turn.is_rebased else ids
            ids += each.turn.token_ids
            ids += each.choice.token_ids
        object.__setattr__(self, "token_ids", ids)

    @property
    def messages(self) -> list[Mapping[str, object]] | None:
        """All messages so far; None if a turn was given as token ids."""
        messages: list[Mapping[str, object]] = []
        for each in self.turns:
            if each.turn.messages is None or each.choice.message is None:
                return None
            messages += [*each.turn.messages, each.choice.message]
        return messages

    @property
    def fields(self) -> Mapping[str, object]:
        return self.turns[-1].turn.fields if self.turns else {}

    def list_parts(self) -> list[tuple[str, int]]:
        """Return the text so far in parts, each with the index of its first message: by turns what
        was given and what was answered."""
        parts: list[tuple[str, int]] = []
        count = 0
        for each in self.turns:
            parts = [] if each.turn.is_rebased else parts
            given = len(each.turn.messages or ())
            parts += [(each.turn.text, count), (each.answer_text, count + given)]
            count += given + 1
        return parts


@dataclass(frozen=True, slots=True)
class Addition:
    """What a request adds to the past."""

    past: Past
    turn: Turn
    content: bytes
    """The turn, compressed."""

    @classmethod
    def make(cls, past: Past, turn: Turn) -> "Addition":
        """Raises FieldError for messages that cannot be exported."""
        try:
            orjson.dumps(turn.messages)  # as an export writes them
        except orjson.JSONEncodeError as error:
            message = (
                "holds an integer of more than 64 bits, which a session cannot export; send it as "
                "a string."
            )
            raise FieldError(message, "messages") from error
        return cls(past, turn, turn.compress())

    def make_row(self, model: str) -> SessionTurn:
        """Make what the job of the turn adds to its session; `model` is that of a new session."""
        past = self.past
        return SessionTurn(
            session_id=past.session_id,
            after_turn=past.after_turn,
            after_index=past.after_index,
            newest_turn=past.newest_turn,
            content=self.content,
            seconds=past.seconds,
            opens_for="" if past.model else model,
            on_drift=past.on_drift,
        )


def make_choice_id(turn_id: str, index: int) -> str:
    return f"{turn_id}:{index}"
