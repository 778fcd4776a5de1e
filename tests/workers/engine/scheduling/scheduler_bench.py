"""A scheduler without an engine."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from unittest.mock import Mock

from completions.contract.sampling import SamplingParams
from workers.engine.core.request import Audience
from workers.engine.core.sequence import Sequence
from workers.engine.core.sequence_parts import Origin, Prefix
from workers.engine.core.step import SchedulerOutput
from workers.engine.scheduling.block_pool import BlockPool
from workers.engine.scheduling.chunk_sizes import ChunkSizes
from workers.engine.scheduling.prefix_cache import BlockPrefixCache, chain_salt
from workers.engine.scheduling.saved_states import StatefulPrefixCache
from workers.engine.scheduling.scheduler import Scheduler
from workers.engine.scheduling.step_times import StepWork, measure_work

BLOCK_SIZE = 4
NUM_BLOCKS = 12
MAX_NUM_SEQS = 4
BUDGET = 10

_unique = count(1000)


def sequence(
    prompt: int | list[int],
    max_tokens: int = 4,
    priority: int = 0,
    organization: str = "",
    audience: Audience = Audience.NOBODY,
) -> Sequence:
    """A sequence of these tokens, or of so many that no other has."""
    tokens = [next(_unique) for _ in range(prompt)] if isinstance(prompt, int) else list(prompt)
    return Sequence(
        sampling=SamplingParams(max_tokens=max_tokens),
        choice=Mock(),
        token_ids=tokens,
        prompt_len=len(tokens),
        max_total_tokens=len(tokens) + max_tokens,
        origin=Origin(priority=priority, audience=audience, organization=organization),
        prefix=Prefix(chain_salt(organization)),
    )


@dataclass
class Bench:
    """A scheduler whose model answers every sampled sequence, and ends those that are full."""

    num_blocks: int = NUM_BLOCKS
    budget: int = BUDGET
    slots: int = MAX_NUM_SEQS
    caching: bool = True
    saved_states: int = 0
    """More than none stands for a model with states beside the blocks."""
    step_seconds: float = math.inf
    """The limit of a step while somebody reads tokens as they come."""
    cost: Callable[[StepWork], float] = lambda work: 0.0
    """The seconds of a step."""
    pool: BlockPool = field(init=False)
    cache: BlockPrefixCache | None = field(init=False)
    scheduler: Scheduler = field(init=False)
    seconds: float = 0.0
    """What the last step took."""
    states: dict[int, tuple[str, list[int]]] = field(default_factory=dict)
    """By row, the organization and the tokens whose state is saved there."""

    def __post_init__(self) -> None:
        self.pool = BlockPool(self.num_blocks + 1)
        self.cache = BlockPrefixCache(self.pool, BLOCK_SIZE) if self.caching else None
        if self.saved_states:
            rows = range(self.slots, self.slots + self.saved_states)
            self.cache = StatefulPrefixCache(self.pool, BLOCK_SIZE, rows)
        self.chunk_sizes = ChunkSizes(self.step_seconds)
        self.scheduler = Scheduler(
            self.pool, self.cache, BLOCK_SIZE, self.slots, self.budget, self.chunk_sizes
        )

    def add(self, *sequences: Sequence) -> None:
        for seq in sequences:
            self.scheduler.add(seq)

    def step(self, faulty: tuple[Sequence, ...] = ()) -> SchedulerOutput:
        output = self.scheduler.schedule()
        if self.saved_states:
            self._keep_states(output)
        work = measure_work(output.chunks)
        self.seconds = self.cost(work)
        self.chunk_sizes.times.note(work, self.seconds)
        sampled = [s for s, n in output.chunks if s.num_computed + n == s.num_tokens]
        spoilt = [seq for seq in sampled if seq in faulty]
        self.scheduler.advance(output, spoilt)
        for seq in sampled:
            seq.token_ids.append(1)
            if seq in spoilt or seq.num_tokens == seq.max_total_tokens:
                self.scheduler.finish(seq)
        return output

    def _keep_states(self, output: SchedulerOutput) -> None:
        restored = {slot: row for row, slot in output.restores}
        for seq in output.admitted:
            row = restored.get(seq.slot)
            assert (row is None) == (seq.num_computed == 0)
            if row is not None:
                assert self.states[row] == (
                    seq.origin.organization,
                    seq.token_ids[: seq.num_computed],
                )
        sizes = dict(output.chunks)
        assert len({save.row for save in output.saves}) == len(output.saves)
        for seq, num_tokens, row in output.saves:
            assert 0 < num_tokens - seq.num_computed <= sizes[seq]
            assert num_tokens % BLOCK_SIZE == 0
            self.states[row] = seq.origin.organization, seq.token_ids[:num_tokens]

    def run(self, most: int = 5_000) -> list[SchedulerOutput]:
        outputs = []
        while self.scheduler.has_work:
            outputs.append(self.step())
            assert len(outputs) < most
        return outputs


def sizes(output: SchedulerOutput) -> list[int]:
    return [size for _, size in output.chunks]


def prefix(length: int, start: int = 0) -> list[int]:
    return list(range(start, start + length))
