"""A first forward over pages, which shows what a model's layers store and which keep states."""

from typing import Any

import torch

from workers.engine.exceptions import UnsupportedModel
from workers.engine.model.attention_backend import AttentionBackend, Part
from workers.engine.model.kv_cache import CacheProbe
from workers.engine.model.paged import PagedModel
from workers.engine.model.visibility import tagging_masks
from workers.engine.recurrent.mixers import Mixers, find_mixers

PROBED_TOKENS = 2


@torch.inference_mode()
def probe(
    paged: PagedModel, backend: AttentionBackend, block_size: int, device: torch.device
) -> CacheProbe:
    """Run a few tokens, and record what each layer stores and which tokens attend to it. Raises
    UnsupportedModel."""
    found = CacheProbe()
    name = type(paged.model).__name__
    try:
        with tagging_masks(backend.attention):
            _run_a_few(paged, found, backend, block_size, device)
    except UnsupportedModel:
        raise
    except Exception as error:
        raise UnsupportedModel(f"{name} does not run over pages: {error!r}") from error
    if not found.shapes and paged.mixers is None:
        raise UnsupportedModel(f"{name} stores no keys and values")
    return found


@torch.inference_mode()
def find_states(
    paged: PagedModel, backend: AttentionBackend, block_size: int, device: torch.device
) -> Mixers | None:
    """Run a few tokens, and record which modules keep states, if any do. Raises
    UnsupportedModel."""

    def run(options: dict[str, Any]) -> None:
        _run_a_few(paged, CacheProbe(), backend, block_size, device, **options)

    with tagging_masks(backend.attention):
        return find_mixers(paged.model, run)


def _run_a_few(
    paged: PagedModel,
    cache: CacheProbe,
    backend: AttentionBackend,
    block_size: int,
    device: torch.device,
    **options: Any,
) -> None:
    tokens = torch.arange(PROBED_TOKENS, device=device)
    blocks = list(range(-(-PROBED_TOKENS // block_size)))
    metadata = backend.batch(cache, [Part(0, PROBED_TOKENS, blocks)], block_size)
    paged.through_modules(tokens, tokens, metadata, tokens, **options)
