"""What the loader needs from a device's attention: name, cache, and one piece of a sequence.

A model runs through one of two attention functions, the CPU's or the GPU's; each has its own cache
layout and its own kind of metadata.
"""

from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from workers.engine.backends.cpu.attention import (
    ATTENTION,
    AttentionMetadata,
    DecodeGroup,
    PrefillChunk,
)
from workers.engine.backends.cpu.kv_cache import CacheProbe, KVCache, LayerShape
from workers.engine.backends.cuda import attention as cuda_attention
from workers.engine.backends.cuda.inputs import DecodeTable, mixed_metadata
from workers.engine.backends.cuda.kernel_check import why_no_fused_kernels, why_no_split_kernel
from workers.engine.backends.cuda.kv_cache import TokenMajorCache, Way
from workers.engine.scheduling.block_pool import NULL_BLOCK

Metadata = AttentionMetadata | cuda_attention.PagedMetadata | DecodeTable


class Part(NamedTuple):
    """``size`` tokens of one sequence from ``position`` on, and its blocks up to the last."""

    position: int
    size: int
    blocks: list[int]


class AttentionBackend(Protocol):
    """``attention`` is the name under which transformers knows the function. A backend that
    ``fuses`` has kernels for what modules compute one operation after the other."""

    attention: str
    fuses: bool

    def on_cpu(self) -> "AttentionBackend":
        """The same attention for tensors in main memory."""

    def simplify(self) -> bool:
        """Make later caches without the currently preferred kernel. False if none is left."""

    def make_cache(
        self,
        shapes: dict[nn.Module, LayerShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
    ) -> Any:
        """An empty cache for these layers."""

    def batch(self, cache: Any, parts: list[Part], block_size: int) -> Metadata:
        """A flat batch of these parts, single tokens first."""


def backend_for(device: torch.device) -> AttentionBackend:
    return CpuBackend() if device.type == "cpu" else CudaBackend(device)


class CpuBackend:
    attention = ATTENTION
    fuses = False

    def on_cpu(self) -> "CpuBackend":
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
        slots, starts, tables = _layout(parts, block_size)
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


class CudaBackend:
    """The GPU's attention. For tests, it also runs on the CPU, without the kernel."""

    attention = cuda_attention.ATTENTION
    fuses = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.ways = [Way.GATHERED]
        """The ways that this device supports, the preferred one first."""
        if cuda_attention.has_paged_kernel(device):
            self.ways.insert(0, Way.FLASH)
        if device.type == "cuda" and why_no_split_kernel(device) is None:
            self.ways.insert(0, Way.SPLIT)
        self.fuses = device.type == "cuda" and why_no_fused_kernels(device) is None

    def on_cpu(self) -> "CudaBackend":
        return CudaBackend(torch.device("cpu"))

    def simplify(self) -> bool:
        if self.ways[0] is Way.GATHERED:
            return False
        del self.ways[0]
        return True

    def make_cache(
        self,
        shapes: dict[nn.Module, LayerShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
    ) -> TokenMajorCache:
        return TokenMajorCache(
            shapes,
            num_blocks,
            block_size,
            torch.empty(0, dtype=dtype, device=self._device),
            lambda shape: next(
                way for way in self.ways if cuda_attention.takes(way, shape, dtype, block_size)
            ),
        )

    def batch(
        self, cache: TokenMajorCache | CacheProbe, parts: list[Part], block_size: int
    ) -> cuda_attention.PagedMetadata:
        slots, starts, tables = _layout(parts, block_size)
        first, sizes = [part.position for part in parts], [part.size for part in parts]
        lengths = torch.tensor(first) + torch.tensor(sizes)
        tensors = [tensor.to(self._device) for tensor in (slots, starts, lengths, tables)]
        return mixed_metadata(cache, sizes, first, tensors, block_size)


def _layout(parts: list[Part], block_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The slots [tokens] of a flat batch, where its parts begin and end [parts + 1], and their
    block tables [parts, blocks], padded with the null block."""
    slots = []
    for part in parts:
        places = torch.arange(part.position, part.position + part.size)
        blocks = torch.tensor(part.blocks)
        slots.append(blocks[places // block_size] * block_size + places % block_size)
    starts = torch.tensor([0, *accumulate(part.size for part in parts)])
    width = max(len(part.blocks) for part in parts)
    padded = [[*part.blocks, *[NULL_BLOCK] * (width - len(part.blocks))] for part in parts]
    return torch.cat(slots), starts, torch.tensor(padded)
