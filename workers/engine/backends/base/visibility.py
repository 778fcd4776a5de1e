"""Which earlier tokens a token sees, read from the masks that a model would build.

A model asks transformers for a mask by its rule, a function of two positions. While it is probed,
it gets a tag instead, and passes it to its attention layers. So each layer's rule is known, even if
no argument of the layer states it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from workers.engine.compat import mask_functions
from workers.engine.core.layer_shape import EVERYTHING, Visible

MaskFunction = Callable[[int, int, Any, Any], Any]
"""Takes batch, head, and the positions of a query and a key; returns whether the query sees it."""

_LONGEST = 2**17


class _Tag(Tensor):
    """Stands for a mask. ``visible`` is None if the mask is of a kind that is not known."""

    visible: Visible | None = None


def get_visible(mask: Tensor) -> Visible | None:
    """Return what a layer's mask says, or None if it is not known: a changed tag says nothing."""
    return getattr(mask, "visible", None)


@contextmanager
def tag_masks(attention: str) -> Iterator[None]:
    """Give models with this attention function tags in place of masks. Without this, transformers
    builds no masks for a function that is not its own."""
    masks = mask_functions(ALL_MASK_ATTENTION_FUNCTIONS)
    masks[attention] = _tag
    try:
        yield
    finally:
        del masks[attention]


def _tag(
    *, q_length: int, kv_length: int, mask_function: MaskFunction, config: Any, **_: Any
) -> Tensor:
    tag: _Tag = torch.zeros(1, 1, q_length, kv_length).as_subclass(_Tag)
    tag.visible = read_mask(mask_function, config)
    return tag


def read_mask(mask_function: MaskFunction, config: Any) -> Visible | None:
    """Return the rule of a mask, found by asking it about pairs of positions."""
    span = min(_LONGEST, 1 + (getattr(config, "max_position_embeddings", None) or _LONGEST))
    keys = torch.arange(span)
    last = span - 1
    seen = _ask(mask_function, torch.tensor([last]), keys)[0]
    if not seen[last]:
        return None
    first = int(seen.int().argmax())
    chunk = getattr(config, "attention_chunk_size", None)
    candidates = [Visible(window=last - first + 1)] if first else [EVERYTHING]
    if chunk is not None:
        candidates.append(Visible(chunk=chunk))
    queries = torch.tensor([0, last // 7, last // 3, last // 2 + 1, last - last // 5, last])
    answers = _ask(mask_function, queries, keys)
    for visible in candidates:
        if torch.equal(answers, ~visible.hides(queries[:, None], keys)):
            return visible
    return None


def _ask(mask_function: MaskFunction, queries: Tensor, keys: Tensor) -> Tensor:
    answers: Tensor = mask_function(0, 0, queries[:, None], keys[None])
    return answers.expand(len(queries), len(keys)).bool()
