"""Divides the memory for caches between blocks, states and saved states."""

from collections.abc import Callable
from typing import NamedTuple, Protocol, Self

import torch

from workers.engine.backends.base.gpu_memory import kv_cache_budget
from workers.engine.backends.base.host_memory import available_memory
from workers.engine.config import EngineConfig
from workers.engine.exceptions import TooLarge

_MEMORY_SHARE = 0.25
"""The share of memory free at start that caches take if no size is configured."""

_SAVED_SHARE = 0.25
"""Saved states, and copies for drafts, get this share of the memory that the states of running
sequences leave."""

_COPIES_SHARE = 0.25
"""Copies for drafts get this share of it where it is too small for all."""

_SAVED_PER_SLOT = 4
"""More saved states than this for each slot are of little use."""


class CachedModel(Protocol):
    """What the budget needs to know of a loaded model."""

    @property
    def max_model_len(self) -> int: ...

    def block_bytes(self, block_size: int) -> int: ...


class CacheBudget(NamedTuple):
    num_blocks: int
    num_saved_states: int
    num_state_copies: int
    """For sequences that draft."""

    @classmethod
    def divide(
        cls,
        available: int,
        loaded: CachedModel,
        state_bytes: int,
        config: EngineConfig,
        num_drafting: int = 0,
    ) -> Self:
        """Divide ``available`` bytes. ``state_bytes`` is the size of one sequence's states;
        ``num_drafting`` sequences may need a copy of theirs at once."""
        num_saved = num_copies = 0
        if state_bytes:
            most = _SAVED_PER_SLOT * config.max_num_seqs if config.enable_prefix_caching else 0
            left = int((available - config.max_num_seqs * state_bytes) * _SAVED_SHARE)
            num_spare = max(0, min(left // state_bytes, most + num_drafting))
            num_copies = min(num_drafting, max(num_spare - most, int(num_spare * _COPIES_SHARE)))
            num_saved = num_spare - num_copies
        block_bytes = loaded.block_bytes(config.block_size)
        available -= (num_saved + num_copies) * state_bytes
        return cls(
            count_blocks(available, block_bytes, loaded.max_model_len, config, state_bytes),
            num_saved,
            num_copies,
        )


def count_blocks(
    available: int, block_bytes: int, max_len: int, config: EngineConfig, state_bytes: int = 0
) -> int:
    """As many blocks as fit into ``available`` bytes beside the states of all slots, and never more
    than the longest sequences in every slot can fill. If none fits, raises ValueError, or TooLarge
    where ``available`` depends on what else is in memory."""
    available -= config.max_num_seqs * state_bytes
    if available < block_bytes:
        states = f"{config.max_num_seqs} states of {state_bytes} bytes leave" if state_bytes else ""
        refusal: type[Exception] = TooLarge if config.kv_cache_bytes is None else ValueError
        raise refusal(
            f"a block of the KV cache takes {block_bytes} bytes, and "
            f"{states or 'there are'} {available}: raise kv_cache_bytes or, on a GPU, "
            "gpu_memory_utilization"
        )
    useful = config.max_num_seqs * -(-max_len // config.block_size)
    return min(available // block_bytes, useful) if block_bytes else useful


def cache_bytes(
    config: EngineConfig, device: torch.device, profile: Callable[[], object] | None = None
) -> int:
    """Return the memory for the caches of one rank: the configured size, else a share of what is
    free on a CPU, or what the largest step, run by ``profile``, leaves on a GPU. Raises
    ValueError."""
    if config.kv_cache_bytes is not None:
        return config.kv_cache_bytes
    if device.type != "cpu":
        assert profile is not None
        return kv_cache_budget(device, config.gpu_memory_utilization, profile)
    if (free := available_memory()) is None:
        raise ValueError("the system does not report its free memory: set kv_cache_bytes")
    return int(free * _MEMORY_SHARE) // config.tensor_parallel_size
