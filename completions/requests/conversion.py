"""Bodies of other APIs that are read as chat completions, which make the request."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from re import Pattern
from typing import Any, ClassVar, Final, NamedTuple, Self

from completions.requests.chat import ChatRequestObject
from completions.requests.context import Context
from completions.requests.fields.base import T
from completions.requests.fields.chat.messages import MAX_NAMED
from completions.requests.generation import GenerationRequest
from completions.requests.model import ModelRequestObject

CHAT: Final = ChatRequestObject()
NOT_IN_PROMPT: Final = "Leave it out: it adds nothing to the prompt."
"""Where tokens are counted, what is said of a field that only a whole request has."""


class CountedPrompt(NamedTuple):
    tokens: int
    ignored: Sequence[str]
    """Paths of given fields that have no effect."""


def make_request(chat: ChatRequestObject, context: Context) -> GenerationRequest:
    """Return the request of a chat that another body became. Raises FieldError and APIError."""
    return CHAT.make(chat, replace(context, given={}))


class ConversionObject(ModelRequestObject[T]):
    """A body that is read as a chat completion's."""

    always_long = True  # a template and a tokenizer run over the conversation
    renamed: ClassVar[Sequence[tuple[Pattern[str], str]]] = ()
    """What paths of a chat's body are in this one: patterns and replacements, one after another."""
    alike: ClassVar[Sequence[str]] = ()
    """Fields whose values are a chat's under the same names, though they are declared anew. Those
    that are declared with a chat's own field need no mention."""
    _shared: ClassVar[Sequence[str]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = {name for name, field in cls.fields.items() if CHAT.fields.get(name) is field}
        cls._shared = [*(own - {"model"}), *(name for name in cls.alike if name in cls.fields)]

    @classmethod
    def rename_path(cls, path: str) -> str:
        """Return the path in this body of what a chat completion has at `path`."""
        for pattern, name in cls.renamed:
            path = pattern.sub(name, path)
        return path

    def fill_chat(self, values: Self, context: Context, **changed: Any) -> ChatRequestObject:
        """Return a chat's body with the values that both share, and `changed`."""
        shared = {name: getattr(values, name) for name in self._shared}
        return CHAT.read_values({}, context).change(**shared, **changed)

    def list_unused(self, context: Context) -> list[str]:
        """Return paths of given fields that have no effect, up to MAX_NAMED of them."""
        paths = [path[1:] for path in islice(self.list_ignored(context.given), MAX_NAMED + 1)]
        return [*paths[:MAX_NAMED], *(["..."] if len(paths) > MAX_NAMED else [])]
