"""A first forward over pages, which shows what a model's layers store and which keep states."""

from typing import Any

import torch
from torch import Tensor

from workers.engine.backends.base.cache_probe import CacheProbe
from workers.engine.backends.base.paged import PagedModel, StatefulModules
from workers.engine.backends.base.visibility import tag_masks
from workers.engine.backends.compressed.compressors import find_compressors
from workers.engine.backends.recurrent.mixers import find_mixers
from workers.engine.core.attention_backend import AttentionBackend, Part
from workers.engine.exceptions import UnsupportedModel

_LENGTH, _REPEATS = 2, 5
PROBED_TOKENS = _LENGTH * _REPEATS
"""Of a probe: the same short prompt several times, each as a sequence of its own, at consecutive
positions. So equal keys in the first and the last do not depend on the position."""
_CLEAR = 0.3
"""Some numbers of keys that rotate change by more than this part of their size; rounding changes
them by less."""


@torch.inference_mode()
def probe(
    paged: PagedModel, backend: AttentionBackend, block_size: int, device: torch.device
) -> CacheProbe:
    """Run a few tokens, and record what each layer stores and which tokens attend to it. Raises
    UnsupportedModel."""
    cache = CacheProbe()
    name = type(paged.model).__name__
    try:
        with tag_masks(backend.attention):
            _run_a_few(paged, cache, backend, block_size, device, _REPEATS)
    except UnsupportedModel:
        raise
    except Exception as error:
        raise UnsupportedModel(f"{name} does not run over pages: {error!r}") from error
    if not cache.shapes and paged.mixers is None:
        raise UnsupportedModel(f"{name} stores no keys and values")
    if backend.has_native_forward:  # which alone asks
        cache.positionless = {m for m, keys in cache.keys.items() if not _are_positions_in(keys)}
    cache.forget_tensors()
    return cache


@torch.inference_mode()
def find_states(
    paged: PagedModel, backend: AttentionBackend, block_size: int, device: torch.device
) -> StatefulModules | None:
    """Run a few tokens, and record which modules keep states, if any do. Raises
    UnsupportedModel."""

    def run(options: dict[str, Any]) -> None:
        _run_a_few(paged, CacheProbe(), backend, block_size, device, 1, **options)

    with tag_masks(backend.attention):
        compressors = find_compressors(paged.model, lambda: run({}))
        return compressors or find_mixers(paged.model, run)


def _run_a_few(
    paged: PagedModel,
    cache: CacheProbe,
    backend: AttentionBackend,
    block_size: int,
    device: torch.device,
    repeats: int,
    **options: Any,
) -> None:
    positions = torch.arange(_LENGTH * repeats, device=device)
    part = Part(0, _LENGTH, list(range(-(-_LENGTH // block_size))))
    metadata = backend.batch(cache, [part] * repeats, block_size)
    paged.run_modules(positions % _LENGTH, positions, metadata, positions, **options)


def _are_positions_in(keys: Tensor) -> bool:
    """Return whether the keys [PROBED_TOKENS, heads, dim] of a probe depend on positions. Numbers
    that are smaller than most may be little but rounding."""
    first, last = keys[:_LENGTH].float(), keys[-_LENGTH:].float()
    sizes = first.norm(dim=(0, 1))
    change = (last - first).norm(dim=(0, 1)) / sizes.clamp(min=float(sizes.median()))
    return bool(change.max() > _CLEAR)
