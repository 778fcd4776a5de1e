"""What the fields of one request are read with, beside its body."""

from collections.abc import Mapping
from dataclasses import dataclass

from completions.accounts.keys import Principal
from completions.catalog.entries import ModelEntry
from completions.catalog.model_files import ModelFiles


@dataclass(frozen=True, slots=True)
class RequestedModel:
    """The model that a request names, looked up once."""

    name: str
    """The model as the request names it: `id` or `id:adapter`."""
    entry: ModelEntry
    adapter: str | None
    files: ModelFiles


@dataclass(frozen=True, slots=True)
class Context:
    """The circumstances of one request."""

    principal: Principal
    """The caller."""
    model: RequestedModel
    given: Mapping[str, object]
    """The body as the client sent it."""


def get_files(context: Context | None) -> ModelFiles:
    """Return the files of the requested model, for a field that only bodies with a model have."""
    assert context is not None
    return context.model.files
