"""A model over the paged cache."""

import inspect
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from torch import Tensor, nn

from workers.engine.backends.base.attention import attending
from workers.engine.backends.base.lora import Adapters
from workers.engine.backends.base.temperatures import follow_positions, placing


class NativeForward(Protocol):
    """A forward pass that does not run the model's modules."""

    @property
    def has_experts(self) -> bool: ...

    def takes(self, metadata: Any) -> bool:
        """Return whether it computes a batch."""

    def __call__(
        self, ids: Tensor, positions: Tensor, metadata: Any, logits_rows: Tensor, states: Any = None
    ) -> Tensor:
        """Return the logits [len(logits_rows), vocabulary], valid until the next call."""


class StatefulModules(Protocol):
    """The modules that keep states beside the pages."""

    continues: bool
    """Whether they can continue a sequence with several tokens at once."""

    @property
    def shapes(self) -> Mapping[nn.Module, Mapping[Any, Any]]:
        """The shapes of their states."""

    def wrap(self, adapters: Adapters) -> None:
        """Let the modules compute flat batches, as these adapters change them."""

    def active(self, batch: Any) -> AbstractContextManager[None]:
        """Compute the states of ``batch`` in the forward inside the context."""


class FusedOperations(AbstractContextManager[Any], Protocol):
    """Kernels that stand for several operations of the modules, inside the context."""

    def remove(self) -> None:
        """Take them out of the model again."""


class PagedModel:
    """A causal language model as the engine calls it: on flat batches, over the paged cache.

    ``native`` computes batches that nobody watches without running the model's modules.
    ``mixers`` are the modules that keep states beside the pages, if there are any.
    ``fusion`` computes some of the modules' operations by fused kernels, on GPUs that have them.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        follow_positions(model)
        self.native: NativeForward | None = None
        self.mixers: StatefulModules | None = None
        self.fusion: FusedOperations | None = None
        # Most models can leave rows out of their output layer, the largest product of a step.
        self.selects_rows = "logits_to_keep" in inspect.signature(model.forward).parameters

    def __call__(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        metadata: Any,
        logits_rows: Tensor,
        states: Any = None,
    ) -> Tensor:
        """Return one forward over a flat batch [tokens]; logits [len(logits_rows), vocabulary],
        valid until the next. A model with ``mixers`` needs its ``states``."""
        if self.native is not None and self.native.takes(metadata):
            return self.native(input_ids, position_ids, metadata, logits_rows, states)
        with nullcontext() if self.mixers is None else self.mixers.active(states):
            return self.run_modules(input_ids, position_ids, metadata, logits_rows)

    def run_modules(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        metadata: Any,
        logits_rows: Tensor,
        **options: Any,
    ) -> Tensor:
        """Return the same through the model's modules, with more ``options`` of its forward."""
        options["use_cache"] = False
        if self.selects_rows:
            options["logits_to_keep"] = logits_rows
        ids, positions = input_ids[None], position_ids[None]
        with attending(metadata), placing(position_ids), self.fusion or nullcontext():
            output = self.model(input_ids=ids, position_ids=positions, **options)
        logits: Tensor = output.logits[0]
        return logits if self.selects_rows else logits[logits_rows]
