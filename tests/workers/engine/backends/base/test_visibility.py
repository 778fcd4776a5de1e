import pytest
import torch
from torch import Tensor
from transformers import AutoConfig
from transformers.masking_utils import (
    causal_mask_function,
    chunked_causal_mask_function,
    or_masks,
    sliding_window_causal_mask_function,
)

from workers.engine.backends.base.visibility import get_visible, read_mask
from workers.engine.core.layer_shape import EVERYTHING, Visible

CONFIG = AutoConfig.for_model("llama", max_position_embeddings=1000)
CONFIG.attention_chunk_size = 64
NO_PADDING = torch.zeros(1, dtype=torch.int64)


@pytest.mark.parametrize(
    ("function", "visible"),
    [
        (causal_mask_function, EVERYTHING),
        (sliding_window_causal_mask_function(33), Visible(window=33)),
        (sliding_window_causal_mask_function(5000), EVERYTHING),
        (chunked_causal_mask_function(64, NO_PADDING), Visible(chunk=64)),
        (or_masks(causal_mask_function, lambda b, h, q, k: k < 9), None),
        (lambda b, h, q, k: (k <= q) & (k % 2 == 0), None),
    ],
    ids=["causal", "window", "longer than any text", "chunk", "sees ahead", "every other"],
)
def test_a_mask_is_read(function: object, visible: Visible | None) -> None:
    assert read_mask(function, CONFIG) == visible  # type: ignore[arg-type]


@pytest.mark.parametrize("visible", [Visible(window=3), Visible(chunk=4), Visible(3, 4)])
def test_what_is_hidden(visible: Visible) -> None:
    places = torch.arange(12)
    hidden = visible.hides(places[:, None], places)
    for query in range(12):
        for key in range(12):
            near = visible.window is None or query - key < visible.window
            together = visible.chunk is None or query // visible.chunk == key // visible.chunk
            assert hidden[query, key] == (not (key <= query and near and together))
    assert visible.sees_all(3)
    assert not visible.sees_all(5)


def test_a_tag_that_was_changed_says_nothing() -> None:
    assert get_visible(Tensor([0.0])) is None
