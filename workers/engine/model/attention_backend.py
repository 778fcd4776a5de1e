"""What the loader needs of a device's attention: its name, its cache, and one piece of a sequence.

A model runs through one of two attention functions, the CPU's or the GPU's; each has a layout of
the cache and a kind of metadata of its own.
"""

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from workers.engine.cuda import attention as cuda_attention
from workers.engine.cuda.inputs import DecodeTable, mixed_metadata
from workers.engine.cuda.kv_cache import TokenMajorCache
from workers.engine.model.attention import ATTENTION, AttentionMetadata, DecodeGroup, PrefillChunk
from workers.engine.model.kv_cache import CacheProbe, KVCache, LayerShape

Metadata = AttentionMetadata | cuda_attention.PagedMetadata | DecodeTable


class AttentionBackend(Protocol):
    """``attention`` is the name under which transformers knows the function."""

    attention: str

    def make_cache(
        self,
        shapes: dict[nn.Module, LayerShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
    ) -> Any:
        """A cache for these layers, empty."""

    def piece(
        self, cache: Any, position: int, size: int, blocks: Tensor, block_size: int
    ) -> Metadata:
        """A flat batch of ``size`` tokens of one sequence, the first at ``position``, that lives
        in ``blocks`` [1, blocks]."""


def backend_for(device: torch.device) -> AttentionBackend:
    return CpuBackend() if device.type == "cpu" else CudaBackend(device)


class CpuBackend:
    attention = ATTENTION

    def make_cache(
        self,
        shapes: dict[nn.Module, LayerShape],
        num_blocks: int,
        block_size: int,
        dtype: torch.dtype,
    ) -> KVCache:
        return KVCache(shapes, num_blocks, block_size, dtype)

    def piece(
        self, cache: KVCache | CacheProbe, position: int, size: int, blocks: Tensor, block_size: int
    ) -> AttentionMetadata:
        places = torch.arange(position, position + size)
        slots = blocks[0, places // block_size] * block_size + places % block_size
        metadata = AttentionMetadata(cache, slots, [], [], blocks, torch.zeros_like(places))
        if size == 1 and position:
            metadata.groups.append(DecodeGroup(0, 1, blocks, places))
        else:
            metadata.chunks.append(PrefillChunk(0, size, position, blocks))
        return metadata


class CudaBackend:
    """Also runs on the CPU, without the kernel, for tests."""

    attention = cuda_attention.ATTENTION

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._has_kernel = cuda_attention.has_paged_kernel(device)

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
            lambda shape: (
                self._has_kernel and cuda_attention.kernel_takes(shape, dtype, block_size)
            ),
        )

    def piece(
        self,
        cache: TokenMajorCache | CacheProbe,
        position: int,
        size: int,
        blocks: Tensor,
        block_size: int,
    ) -> cuda_attention.PagedMetadata:
        places = torch.arange(position, position + size)
        slots = blocks[0, places // block_size] * block_size + places % block_size
        starts, lengths = torch.tensor([0, size]), torch.tensor([position + size])
        tensors = [tensor.to(self._device) for tensor in (slots, starts, lengths, blocks)]
        return mixed_metadata(cache, [size], [position], tensors, block_size)
