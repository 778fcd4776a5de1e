"""Custom logit processors that fail, as an operator's own may."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nan

from workers.engine.sampling.custom_processors import ChoiceContext


class Raises:
    """Raises at the second token."""

    def __init__(self, params: Mapping[str, Any], context: ChoiceContext) -> None:
        self._prompt_len = context.prompt_len

    def __call__(self, token_ids: Sequence[int], logits: Tensor) -> None:
        if len(token_ids) > self._prompt_len:
            raise ZeroDivisionError("a secret of the operator's")


class Poisons:
    """Replaces all logits with NaN."""

    def __init__(self, params: Mapping[str, Any], context: ChoiceContext) -> None:
        pass

    def __call__(self, token_ids: Sequence[int], logits: Tensor) -> None:
        logits.fill_(nan)
