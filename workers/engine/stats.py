"""What an engine has done and what it holds, at one moment."""

from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class EngineStats:
    """``running`` and ``waiting`` count sequences; ``last_step_at`` is ``time.monotonic()`` when a
    step last began or ended. Of the KV cache's blocks, running sequences hold ``kv_blocks_used``,
    and ``kv_blocks_idle`` hold prefixes that nobody uses at the moment.

    Since the start: ``preemptions``, and tokens of sequences that began to run
    (``prefix_cache_queries``), of which ``prefix_cache_hits`` were in the prefix cache.

    ``forced_tokens`` are those among ``generated_tokens`` that a grammar forced and that were
    appended without a step of their own.

    ``step_seconds`` is the time spent stepping since the start, by phase: ``schedule``,
    ``forward``, ``mask`` (waiting for masks after the forward), ``sample`` and ``append``.
    """

    running: int = 0
    waiting: int = 0
    kv_blocks_used: int = 0
    kv_blocks_idle: int = 0
    kv_blocks_total: int = 0
    preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    generated_tokens: int = 0
    forced_tokens: int = 0
    steps: int = 0
    last_step_at: float = 0.0
    step_seconds: dict[str, float] = field(default_factory=dict)

    def counters(self) -> dict[str, int]:
        """Everything that is counted, by name: what a worker reports of its engine."""
        return {name: n for name, n in asdict(self).items() if isinstance(n, int)}

    @property
    def forced_share(self) -> float:
        """Of all generated tokens, from 0 to 1."""
        return self.forced_tokens / self.generated_tokens if self.generated_tokens else 0.0
