"""Records values that pass between a model's modules, for the sequences that ask for them.

Nothing here knows an architecture. The final hidden state is what enters the output head. A first
forward shows which modules receive the experts of each token. Hooks exist only during the forward
of a step in which a sequence wants a record.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from workers.engine.core.model_input import ModelInput


@contextmanager
def finding_routed_modules(model: nn.Module) -> Iterator[list[nn.Module]]:
    """Yield a list that a forward of two or more tokens fills: the modules that receive the experts
    of each token. It stays empty if the modules differ in top_k. Of nested modules, only the
    outermost counts."""
    modules: list[nn.Module] = []
    names: list[str] = []
    widths: set[int] = set()

    def look(name: str, module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        ids = _expert_ids(args, kwargs)
        if ids is not None and not any(name.startswith(f"{outer}.") for outer in names):
            modules.append(module)
            names.append(name)
            widths.add(ids.shape[1])

    hooks = [
        module.register_forward_pre_hook(partial(look, name), with_kwargs=True)
        for name, module in model.named_modules()
    ]
    try:
        yield modules
    finally:
        for hook in hooks:
            hook.remove()
        if len(widths) > 1:
            modules.clear()


class Recorder:
    """Fills the records of a step's sequences. ``routed`` are the model's routed modules, and
    ``selects_rows`` is whether ``head`` gets the rows of the logits instead of the whole batch."""

    def __init__(self, head: nn.Module, routed: list[nn.Module], selects_rows: bool) -> None:
        self._head = head
        self._routed = routed
        self._selects_rows = selects_rows

    @property
    def sees_experts(self) -> bool:
        return bool(self._routed)

    @contextmanager
    def watching(self, batch: ModelInput) -> Iterator[None]:
        """Record what the forward of ``batch`` inside the context computes for the sequences that
        ask."""
        batch = batch.apart or batch
        hidden: list[Tensor] = []
        experts: dict[nn.Module, list[Tensor]] = {}

        def note_hidden(module: nn.Module, args: tuple[Tensor, ...]) -> None:
            hidden.append(args[0].flatten(0, -2))

        def note_experts(module: nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
            if (ids := _expert_ids(args, kwargs)) is not None:
                experts.setdefault(module, []).append(ids)

        hooks = [self._head.register_forward_pre_hook(note_hidden)]
        if any(seq.record and seq.record.experts_from is not None for seq, _, _ in batch.layout):
            hooks += [
                module.register_forward_pre_hook(note_experts, with_kwargs=True)
                for module in self._routed
            ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
        if not hidden:
            return  # no forward: all chunks of the step are prompts that are computed later
        rows = torch.cat(hidden)
        _store_hidden(batch, rows if self._selects_rows else rows[batch.logits_rows])
        if experts:
            layers = [torch.cat(parts) for parts in experts.values()]
            _store_experts(batch, torch.stack(layers, dim=1))


def _store_hidden(batch: ModelInput, hidden: Tensor) -> None:
    """``hidden`` has the rows of the logits."""
    for row, seq in enumerate(batch.sampled):
        if seq.record is not None and seq.record.hidden_states:
            seq.record.note_hidden(hidden[row].float().cpu().numpy())


def _store_experts(batch: ModelInput, experts: Tensor) -> None:
    """``experts`` [tokens, layers, top_k] of the flat batch, which may be padded at its end."""
    ids = experts.to(torch.int32).cpu().numpy()
    row = 0
    for seq, position, size in batch.layout:
        if seq.record is not None and seq.record.experts_from is not None:
            seq.record.note_experts(position, ids[row : row + size])
        row += size


def _expert_ids(args: Any, kwargs: Mapping[str, Any]) -> Tensor | None:
    """Return the integers [tokens, top_k] that a module received with the hidden states of as many
    tokens: only a choice of experts has this form."""
    given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and x.dim() == 2]
    ids = [x for x in given if not x.is_floating_point() and x.dtype != torch.bool]
    if len(ids) != 1 or len(ids) == len(given) or any(len(x) != len(ids[0]) for x in given):
        return None
    return ids[0]
