"""Statistics of an engine that has done nothing but what a test says."""

from dataclasses import replace
from typing import Any

from workers.engine.stats import EngineStats

_IDLE = EngineStats(
    forward="c",
    slots=64,
    running=0,
    waiting=0,
    kv_blocks_used=0,
    kv_blocks_idle=0,
    kv_blocks_total=0,
    block_size=0,
    loaded_adapters=0,
    preemptions=0,
    prefix_cache_queries=0,
    prefix_cache_hits=0,
    generated_tokens=0,
    forced_tokens=0,
    drafted_tokens=0,
    accepted_tokens=0,
    steps=0,
    last_step_at=0.0,
    step_seconds={},
)


def engine_stats(**given: Any) -> EngineStats:
    return replace(_IDLE, **given)
