"""What the fields of one request are read with, beside its body."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from completions.accounts.keys import Principal
from completions.catalog.entries import ModelEntry
from completions.catalog.model_files import ModelFiles
from completions.models.conversations import Item
from completions.requests.past import Past


@dataclass(frozen=True, slots=True)
class RequestedModel:
    """The model that a request names, looked up once."""

    name: str
    """The model as the request names it: `id` or `id:adapter`."""
    entry: ModelEntry
    adapter: str | None
    files: ModelFiles


@dataclass(frozen=True, slots=True)
class Earlier:
    """What SQL has of a conversation that a request goes on with."""

    items: Sequence[Item] = ()
    """The items before those of the request."""
    last_item: int = 0
    """The primary key of the last of these, where they are those of a conversation; 0 for none."""
    by_id: Mapping[str, Item] = field(default_factory=dict)
    """The items that the request refers to."""
    is_local: bool = False
    """Whether the items are those of a response that is not stored."""
    past: Past | None = None
    """What the session holds that the request is a turn of."""


NOTHING_EARLIER = Earlier()


@dataclass(frozen=True, slots=True)
class Context:
    """The circumstances of one request."""

    principal: Principal
    """The caller."""
    model: RequestedModel
    given: Mapping[str, object]
    """The body as the client sent it, with what its session holds."""
    earlier: Earlier = NOTHING_EARLIER
