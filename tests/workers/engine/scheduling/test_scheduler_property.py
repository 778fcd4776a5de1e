from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.workers.engine.scheduling.scheduler_bench import (
    BLOCK_SIZE,
    BUDGET,
    MAX_NUM_SEQS,
    NUM_BLOCKS,
    Bench,
    sequence,
    sizes,
)
from workers.engine.core.sequence import Sequence
from workers.engine.scheduling import turns
from workers.engine.scheduling.saved_states import StatefulPrefixCache


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals, faults and aborts at any time, in a cache too small for all."""

    saved_states = 0
    least_progress = 64

    def __init__(self) -> None:
        super().__init__()
        turns.LEAST_PROGRESS = self.least_progress
        self.bench = Bench(saved_states=self.saved_states)
        self.sequences: list[Sequence] = []
        self.dropped: set[Sequence] = set()

    @rule(
        length=st.integers(1, 30),
        start=st.integers(0, 3),
        max_tokens=st.integers(1, 18),
        priority=st.integers(-1, 1),
        organization=st.sampled_from("abcd"),
        published=st.integers(0, 3),
    )
    def add(
        self,
        length: int,
        start: int,
        max_tokens: int,
        priority: int,
        organization: str,
        published: int,
    ) -> None:
        prompt = [start if place % 8 == 7 else place for place in range(length)]
        seq = sequence(prompt, max_tokens, priority, organization)
        seq.token_ids += [1] * min(published, max_tokens - 1)
        self.bench.add(seq)
        self.sequences.append(seq)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(self.sequences))
        self.bench.scheduler.finish(seq)
        self.dropped.add(seq)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def force(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(self.sequences))
        if not seq.finished:
            seq.token_ids += [2] * min(5, seq.max_total_tokens - 1 - seq.num_tokens)

    @rule(data=st.data(), spoil=st.booleans())
    def step(self, data: st.DataObject, spoil: bool) -> None:
        live = [seq for seq in self.sequences if not seq.finished]
        spoilt = (data.draw(st.sampled_from(live)),) if live and spoil else ()
        before = {seq: seq.num_tokens for seq in live}
        preemptions = self.bench.scheduler.preemptions
        output = self.bench.step(spoilt)
        self.dropped.update(seq for seq in spoilt if seq.finished)
        assert sum(sizes(output)) <= BUDGET
        assert all(size > 0 for size in sizes(output))
        assert len({seq for seq, _ in output.chunks}) == len(output.chunks)
        assert bool(output.chunks) == bool(live)
        # The most senior always runs. In a step that preempts, sequences that waited do not start.
        crowded = self.bench.scheduler.preemptions > preemptions
        senior = [seq for seq in live if seq.finished or seq.slot >= 0] if crowded else live
        if live:
            highest = max(seq.rank for seq in senior)
            top = [seq for seq in senior if seq.rank == highest]
            assert any(seq in top for seq, _ in output.chunks)
        for seq, _ in output.chunks:
            assert seq.finished or seq.num_tokens - before[seq] in (0, 1)

    @invariant()
    def blocks_are_held_as_often_as_counted(self) -> None:
        pool, running = self.bench.pool, [seq for seq in self.sequences if seq.slot >= 0]
        held = [block for seq in running for block in seq.block_ids]
        for block in range(1, NUM_BLOCKS + 1):
            assert pool.references[block] == held.count(block)
        assert pool.num_used == len(set(held))
        assert pool.num_free + pool.num_used == NUM_BLOCKS
        assert len({seq.slot for seq in running}) == len(running) <= MAX_NUM_SEQS
        for seq in self.sequences:
            assert (seq.slot >= 0) == bool(seq.block_ids)
            assert not (seq.finished and seq.block_ids)
            assert len(set(seq.block_ids)) == len(seq.block_ids)
            assert seq.finished or len(seq.block_ids) * BLOCK_SIZE >= seq.num_computed

    @invariant()
    def shared_blocks_hold_the_same_tokens(self) -> None:
        """Holders of a block have the same organization, and the same tokens up to its end."""
        holders: dict[int, tuple[str, tuple[int, ...]]] = {}
        for seq in self.sequences:
            for index, block in enumerate(seq.block_ids):
                end = (index + 1) * BLOCK_SIZE
                content = (seq.origin.organization, tuple(seq.token_ids[:end]))
                assert holders.setdefault(block, content) == content

    @invariant()
    def the_cache_and_the_pool_agree(self) -> None:
        """Compares private sets: a difference would do harm only many events later."""
        pool, cache = self.bench.pool, self.bench.cache
        assert cache is not None
        assert pool._kept == set(cache._hashes) == set(cache._blocks.values())
        assert len(cache._blocks) == len(cache._hashes)
        assert set(pool._idle) == {block for block in pool._kept if not pool.references[block]}
        assert not pool.tainted & pool._kept

    def teardown(self) -> None:
        """Every sequence that was not dropped ends, and all memory comes back, private too."""
        self.bench.run()
        for seq in self.sequences:
            assert seq.finished
            assert seq in self.dropped or seq.num_tokens == seq.max_total_tokens
        assert self.bench.pool.num_used == 0
        assert self.bench.scheduler._queue._levels == {}
        assert not self.bench.scheduler._pending._owners
        turns.LEAST_PROGRESS = SchedulerMachine.least_progress

    @invariant()
    def the_queue_knows_what_runs(self) -> None:
        counts = Counter(
            (s.origin.priority, s.origin.organization) for s in self.sequences if s.slot >= 0
        )
        for priority, level in self.bench.scheduler._queue._levels.items():
            for organization, tenant in level.tenants.items():
                assert tenant.running == counts[priority, organization]


class HastyMachine(SchedulerMachine):
    """The same with sequences that soon yield, and yield again."""

    least_progress = 2


class StatesMachine(SchedulerMachine):
    """The same for a model with states beside the blocks, of which few can be saved. The bench
    checks that a sequence starts from the state of its own tokens."""

    saved_states = 5

    @invariant()
    def every_row_of_saved_states_has_one_use(self) -> None:
        cache = self.bench.cache
        assert isinstance(cache, StatefulPrefixCache)
        pending = [state.row for seq in self.sequences for state in seq.prefix.states.pending]
        rows = [*cache.saved._free, *cache.saved._rows.values(), *pending]
        assert sorted(rows) == list(range(MAX_NUM_SEQS, MAX_NUM_SEQS + self.saved_states))
        assert not any(seq.prefix.states.pending for seq in self.sequences if seq.finished)


SchedulerMachine.TestCase.settings = settings(stateful_step_count=30)
TestScheduler = SchedulerMachine.TestCase
HastyMachine.TestCase.settings = settings(stateful_step_count=30)
TestSchedulerOfHastyTurns = HastyMachine.TestCase
StatesMachine.TestCase.settings = settings(stateful_step_count=30)
TestSchedulerWithStates = StatesMachine.TestCase
