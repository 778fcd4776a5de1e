"""`suffix`: the prompt rearranged so that the model fills the gap before it.

Bavarian et al. 2022 (arXiv 2207.14255), in the order prefix, suffix, middle (PSM).
"""

from collections.abc import Sequence
from typing import NamedTuple

from completions.catalog.model_files import ModelFiles
from completions.errors import FieldError
from completions.requests.token_fields import token_ids


class Around(NamedTuple):
    """Token ids before and after a prompt."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        return len(self.before) + len(self.after)

    def put(self, prompt: Sequence[int]) -> Sequence[int]:
        return [*self.before, *prompt, *self.after] if self.length else prompt


def around(suffix: str | None, model: ModelFiles) -> Around:
    """What stands around the prompts of a request with this suffix. Raises FieldError."""
    if suffix is None:
        return Around()
    if model.fim_token_ids is None:
        message = "this model fills no gaps. Use one with the capability `fim`."
        raise FieldError("unsupported_parameter", message, "suffix")
    before, then, middle = model.fim_token_ids
    ids = token_ids(model, suffix, "suffix", special=False)
    return Around((before,), (then, *ids, middle))
