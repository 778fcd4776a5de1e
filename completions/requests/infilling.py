"""`suffix`: the prompt rearranged so that the model fills the gap before the suffix.

Bavarian et al. 2022 (arXiv 2207.14255), in the order prefix, suffix, middle (PSM).
"""

from collections.abc import Sequence
from typing import NamedTuple

from completions.catalog.model_files import ModelFiles
from completions.errors import FieldError
from completions.requests.fields.tokens import token_ids


class Frame(NamedTuple):
    """Token ids before and after a prompt."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        return len(self.before) + len(self.after)

    def around(self, prompt: Sequence[int]) -> Sequence[int]:
        return [*self.before, *prompt, *self.after] if self.length else prompt


def frame(suffix: str | None, model: ModelFiles) -> Frame:
    """What stands around the prompts of a request with this suffix. Raises FieldError."""
    if suffix is None:
        return Frame()
    if model.fim_token_ids is None:
        message = (
            "this model cannot fill in text. Leave this out, or use a model with the capability "
            "`fim`."
        )
        raise FieldError("unsupported_parameter", message, "suffix")
    prefix_id, suffix_id, middle_id = model.fim_token_ids
    ids = token_ids(model, suffix, "suffix", special=False)
    return Frame((prefix_id,), (suffix_id, *ids, middle_id))
