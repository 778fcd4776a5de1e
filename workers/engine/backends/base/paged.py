"""A model over the paged cache."""

import inspect
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn

from workers.engine.backends.cpu.attention import AttentionMetadata, attending
from workers.engine.backends.cpu.decoder import NativeDecoder
from workers.engine.backends.cuda.fusion import Fusion
from workers.engine.backends.recurrent.batch import StateBatch
from workers.engine.backends.recurrent.mixers import Mixers
from workers.engine.core.attention_backend import Metadata


class PagedModel:
    """A causal language model as the engine calls it: on flat batches, over the paged cache.

    ``native`` computes batches that nobody watches without running the model's modules.
    ``mixers`` are the modules that keep states beside the pages, if there are any.
    ``fusion`` computes some of the modules' operations by fused kernels, on GPUs that have them.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.native: NativeDecoder | None = None
        self.mixers: Mixers | None = None
        self.fusion: Fusion | None = None
        # Most models can leave rows out of their output layer, the largest product of a step.
        self.selects_rows = "logits_to_keep" in inspect.signature(model.forward).parameters

    def __call__(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        metadata: Metadata,
        logits_rows: Tensor,
        states: StateBatch | None = None,
    ) -> Tensor:
        """One forward over a flat batch [tokens]; logits [len(logits_rows), vocabulary], valid
        until the next. A model with ``mixers`` needs its ``states``."""
        if self.native is not None:
            assert isinstance(metadata, AttentionMetadata)
            if self.native.takes(metadata):
                return self.native(input_ids, position_ids, metadata, logits_rows)
        with nullcontext() if self.mixers is None else self.mixers.active(states):
            return self.through_modules(input_ids, position_ids, metadata, logits_rows)

    def through_modules(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        metadata: Metadata,
        logits_rows: Tensor,
        **options: Any,
    ) -> Tensor:
        """The same through the model's modules, with more ``options`` of its forward."""
        options["use_cache"] = False
        if self.selects_rows:
            options["logits_to_keep"] = logits_rows
        ids, positions = input_ids[None], position_ids[None]
        with attending(metadata), self.fusion or nullcontext():
            output = self.model(input_ids=ids, position_ids=positions, **options)
        logits: Tensor = output.logits[0]
        return logits if self.selects_rows else logits[logits_rows]
