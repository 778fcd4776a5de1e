"""Divides the memory for caches between blocks, states and saved states."""

from typing import NamedTuple, Self

from workers.engine.config import EngineConfig
from workers.engine.loading.loader import LoadedModel
from workers.engine.model.memory import available_memory

_MEMORY_SHARE = 0.25
"""The share of memory free at start that caches take if no size is configured."""

_SAVED_SHARE = 0.25
"""Saved states get this share of the memory that the states of running sequences leave."""

_SAVED_PER_SLOT = 4
"""More saved states than this for each slot are of little use."""


class CacheBudget(NamedTuple):
    num_blocks: int
    num_saved_states: int

    @classmethod
    def divide(cls, loaded: LoadedModel, state_bytes: int, config: EngineConfig) -> Self:
        """The configured memory or a share of free memory, and never more blocks than the longest
        sequences in every slot could fill. ``state_bytes`` is the size of one sequence's states."""
        block_bytes = config.block_size * sum(
            shape.token_bytes(loaded.dtype) for shape in loaded.layer_shapes.values()
        )
        num_blocks = config.max_num_seqs * -(-loaded.max_model_len // config.block_size)
        available = cache_bytes(config) - config.max_num_seqs * state_bytes
        num_saved = 0
        if state_bytes and config.enable_prefix_caching:
            most = _SAVED_PER_SLOT * config.max_num_seqs
            num_saved = max(0, min(int(available * _SAVED_SHARE) // state_bytes, most))
        if block_bytes:
            num_blocks = min((available - num_saved * state_bytes) // block_bytes, num_blocks)
        if num_blocks < 1 or available < 0:
            states = f"{config.max_num_seqs} states of {state_bytes} bytes and "
            raise ValueError(
                f"kv_cache_bytes must hold {states if state_bytes else ''}a block of {block_bytes} "
                "bytes at least"
            )
        return cls(num_blocks, num_saved)


def cache_bytes(config: EngineConfig) -> int:
    """The memory for the caches of one rank on a CPU. Raises ValueError."""
    if config.kv_cache_bytes is not None:
        return config.kv_cache_bytes
    if (free := available_memory()) is None:
        raise ValueError("the system does not report its free memory: set kv_cache_bytes")
    return int(free * _MEMORY_SHARE) // config.tensor_parallel_size
