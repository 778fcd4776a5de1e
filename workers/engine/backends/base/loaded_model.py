"""A model ready to run, with what the engine needs to know about it."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from workers.engine.backends.base.lora import Adapters
from workers.engine.backends.base.paged import PagedModel
from workers.engine.backends.base.recorder import Recorder
from workers.engine.backends.parallel.group import Ranks
from workers.engine.config import EngineConfig
from workers.engine.core.attention_backend import AttentionBackend
from workers.engine.core.layer_shape import LayerShape
from workers.engine.core.runner import Draw, Runner
from workers.engine.text.detokenizer import Vocabulary

MakeRunner = Callable[["LoadedModel", EngineConfig, Draw], Runner]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run, with what the engine needs to know about it."""

    make_runner: MakeRunner
    forward: str
    """What computes the model: ``c``, ``torch``, ``cuda`` or ``general``."""
    paged: PagedModel | None
    """The model over pages; None if it cannot run over them."""
    vocabulary: Vocabulary
    vocab_size: int
    eos_token_ids: frozenset[int]
    max_model_len: int
    max_positions: int
    """For how many positions the forward pass has tables: fewer than ``max_model_len`` if the cache
    has no room for such a sequence."""
    layer_shapes: dict[nn.Module, LayerShape]
    """What each attention layer stores in the paged cache; empty for a model without pages."""
    dtype: torch.dtype
    device: torch.device
    backend: AttentionBackend
    adapters: Adapters
    recorder: Recorder
    ranks: Ranks | None = None
    """The processes that each have a part of the model; None if this one has all of it."""

    def agree_on(self, number: int) -> int:
        """Return the smallest number that the ranks give: blocks that each has memory for, or 0
        for what one of them cannot do."""
        return number if self.ranks is None else self.ranks.smallest(number)

    def block_bytes(self, block_size: int) -> int:
        """Return the size of a block of ``block_size`` tokens in all layers."""
        shapes = self.layer_shapes.values()
        return sum(shape.block_bytes(block_size, self.dtype) for shape in shapes)
