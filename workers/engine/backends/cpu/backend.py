"""The CPU's attention: over pages by torch operations, and in C for models that it supports."""

import torch
from torch import nn

from workers.engine.backends.base.cache_probe import CacheProbe
from workers.engine.backends.base.loaded_model import LoadedModel
from workers.engine.backends.base.paged import PagedModel
from workers.engine.backends.base.parts import lay_out_parts
from workers.engine.backends.cpu.attention import (
    ATTENTION,
    AttentionMetadata,
    DecodeGroup,
    PrefillChunk,
)
from workers.engine.backends.cpu.kv_cache import KVCache
from workers.engine.backends.cpu.runner import CpuRunner
from workers.engine.config import EngineConfig
from workers.engine.core.attention_backend import Part
from workers.engine.core.layer_shape import LayerShape
from workers.engine.core.runner import Draw


class CpuBackend:
    """The CPU's attention."""

    name = "torch"
    attention = ATTENTION
    fuses = False
    has_native_forward = True

    def make_runner(
        self, model: PagedModel, loaded: LoadedModel, config: EngineConfig, _draw: Draw
    ) -> CpuRunner:
        return CpuRunner(model, loaded, config)

    def make_for_cpu(self) -> "CpuBackend":
        return self

    def simplify(self) -> bool:
        return False

    def make_cache(
        self,
        shapes: dict[nn.Module, LayerShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
    ) -> KVCache:
        return KVCache(shapes, num_blocks, block_size, dtype)

    def batch(
        self, cache: KVCache | CacheProbe, parts: list[Part], block_size: int
    ) -> AttentionMetadata:
        slots, starts, tables = lay_out_parts(parts, block_size)
        owners = torch.arange(len(parts)).repeat_interleave(starts.diff())
        metadata = AttentionMetadata(cache, slots, [], [], tables, owners)
        num_singles = sum(part.size == 1 and part.position > 0 for part in parts)
        if num_singles:
            positions = torch.tensor([part.position for part in parts[:num_singles]])
            metadata.groups.append(DecodeGroup(0, num_singles, tables[:num_singles], positions))
        for i, part in enumerate(parts[num_singles:], num_singles):
            start, end = starts[i : i + 2].tolist()
            used = -(-(part.position + part.size) // block_size)
            table = tables[i : i + 1, :used]
            metadata.chunks.append(PrefillChunk(start, end, part.position, table))
        return metadata
