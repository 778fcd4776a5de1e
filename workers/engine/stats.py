"""A snapshot of what an engine has done and what it holds."""

from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Counters and gauges of one engine. Counters start at zero with the engine."""

    running: int = 0
    """Sequences that hold a slot."""
    waiting: int = 0
    """Sequences that wait for one."""
    kv_blocks_used: int = 0
    """Blocks of the KV cache that running sequences hold."""
    kv_blocks_idle: int = 0
    """Blocks that hold cached prefixes no running sequence uses."""
    kv_blocks_total: int = 0
    preemptions: int = 0
    prefix_cache_queries: int = 0
    """Tokens of sequences that began to run."""
    prefix_cache_hits: int = 0
    """Those among them that were in the prefix cache."""
    generated_tokens: int = 0
    forced_tokens: int = 0
    """Generated tokens that a grammar forced and that took no step of their own."""
    steps: int = 0
    last_step_at: float = 0.0
    """``time.monotonic()`` when a step last began or ended."""
    step_seconds: dict[str, float] = field(default_factory=dict)
    """Time spent in steps by phase: ``schedule``, ``forward``, ``mask`` (waiting for masks after
    the forward), ``sample`` and ``append``."""

    def counters(self) -> dict[str, int]:
        """All integers by name, for the worker's report."""
        return {name: n for name, n in asdict(self).items() if isinstance(n, int)}

    @property
    def forced_share(self) -> float:
        """Forced tokens as a share of generated ones, from 0 to 1."""
        return self.forced_tokens / self.generated_tokens if self.generated_tokens else 0.0
