"""The GPU's attention: the kernels that this device has, the preferred one first."""

import torch
from torch import nn

from workers.engine.backends.base.cache_probe import CacheProbe
from workers.engine.backends.base.loaded_model import LoadedModel
from workers.engine.backends.base.paged import PagedModel
from workers.engine.backends.base.parts import lay_out_parts
from workers.engine.backends.cuda import attention as cuda_attention
from workers.engine.backends.cuda.inputs import mix_metadata
from workers.engine.backends.cuda.kernel_check import (
    why_no_fused_kernels,
    why_no_latent_kernel,
    why_no_split_kernel,
)
from workers.engine.backends.cuda.kv_cache import TokenMajorCache, Way
from workers.engine.backends.cuda.metadata import PagedMetadata
from workers.engine.backends.cuda.runner import CudaRunner
from workers.engine.config import EngineConfig
from workers.engine.core.attention_backend import Part
from workers.engine.core.layer_shape import LayerShape
from workers.engine.core.runner import Draw


class CudaBackend:
    """The GPU's attention. For tests, it also runs on the CPU, without the kernel."""

    name = "cuda"
    attention = cuda_attention.ATTENTION
    fuses = False
    has_native_forward = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.ways = [Way.GATHERED]
        """The ways that this device supports, the preferred one first."""
        if device.type == "cuda" and why_no_latent_kernel(device) is None:
            self.ways.insert(0, Way.LATENTS)
        if cuda_attention.has_paged_kernel(device):
            self.ways.insert(0, Way.FLASH)
        if device.type == "cuda" and why_no_split_kernel(device) is None:
            self.ways.insert(0, Way.SPLIT)
        self.fuses = device.type == "cuda" and why_no_fused_kernels(device) is None

    def make_runner(
        self, model: PagedModel, loaded: LoadedModel, config: EngineConfig, draw: Draw
    ) -> CudaRunner:
        return CudaRunner(model, loaded, config, draw)

    def make_for_cpu(self) -> "CudaBackend":
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
    ) -> PagedMetadata:
        slots, starts, tables = lay_out_parts(parts, block_size)
        first, sizes = [part.position for part in parts], [part.size for part in parts]
        lengths = torch.tensor(first) + torch.tensor(sizes)
        tensors = [tensor.to(self._device) for tensor in (slots, starts, lengths, tables)]
        return mix_metadata(cache, sizes, first, tensors, block_size)
