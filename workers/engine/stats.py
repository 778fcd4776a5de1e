"""A snapshot of what an engine has done and what it holds."""

from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters and gauges of one engine. Counters start at zero with the engine.

    No field has a default: a figure that nobody sets would be reported as 0 forever.
    """

    forward: str
    """What computes the model: ``c``, ``torch``, ``cuda`` or ``general``."""
    slots: int
    """Sequences that can run at once."""
    running: int
    """Sequences that hold a slot."""
    waiting: int
    """Sequences that wait for a slot."""
    kv_blocks_used: int
    """Blocks of the KV cache that running sequences hold."""
    kv_blocks_idle: int
    """Blocks that hold cached prefixes no running sequence uses."""
    kv_blocks_total: int
    block_size: int
    """Tokens per block."""
    loaded_adapters: int
    """Adapters in memory that were registered since the start, with earlier versions in use."""
    preemptions: int
    prefix_cache_queries: int
    """Tokens of sequences that began to run."""
    prefix_cache_hits: int
    """How many of these were in the prefix cache."""
    generated_tokens: int
    forced_tokens: int
    """Generated tokens that a grammar left no choice about."""
    drafted_tokens: int
    """Drafted tokens: computed before they were known."""
    accepted_tokens: int
    """Drafted tokens that were accepted."""
    steps: int
    last_step_at: float
    """``time.monotonic()`` when a step last began or ended."""
    step_seconds: dict[str, float]
    """Time spent in steps by phase: ``schedule``, ``forward``, ``mask`` (waiting for masks after
    the forward), ``sample`` and ``append``."""

    def counters(self) -> dict[str, int]:
        """Return all integers by name, for the worker's report."""
        return {name: n for name, n in asdict(self).items() if isinstance(n, int)}
