from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from unittest.mock import Mock

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from workers.engine.block_pool import BlockPool
from workers.engine.prefix_cache import PrefixCache, chain_salt
from workers.engine.request import SamplingParams
from workers.engine.scheduler import Scheduler, SchedulerOutput
from workers.engine.sequence import Sequence

BLOCK_SIZE = 4
NUM_BLOCKS = 12
MAX_NUM_SEQS = 4
BUDGET = 10

_unique = count(1000)


def sequence(
    prompt: int | list[int], max_tokens: int = 4, priority: int = 0, organization: str = ""
) -> Sequence:
    """A sequence of these tokens, or of so many that no other has."""
    tokens = [next(_unique) for _ in range(prompt)] if isinstance(prompt, int) else list(prompt)
    return Sequence(
        prompt_index=0,
        choice_index=0,
        sampling=SamplingParams(max_tokens=max_tokens),
        choice=Mock(),
        token_ids=tokens,
        prompt_len=len(tokens),
        max_total_tokens=len(tokens) + max_tokens,
        priority=priority,
        organization=organization,
        cache_salt=chain_salt(organization),
    )


@dataclass
class Bench:
    """A scheduler whose model answers every sampled sequence, and ends those that are full."""

    num_blocks: int = NUM_BLOCKS
    budget: int = BUDGET
    slots: int = MAX_NUM_SEQS
    caching: bool = True
    pool: BlockPool = field(init=False)
    cache: PrefixCache | None = field(init=False)
    scheduler: Scheduler = field(init=False)

    def __post_init__(self) -> None:
        self.pool = BlockPool(self.num_blocks + 1)
        self.cache = PrefixCache(self.pool, BLOCK_SIZE) if self.caching else None
        self.scheduler = Scheduler(self.pool, self.cache, BLOCK_SIZE, self.slots, self.budget)

    def add(self, *sequences: Sequence) -> None:
        for seq in sequences:
            self.scheduler.add(seq)

    def step(self, faulty: tuple[Sequence, ...] = ()) -> SchedulerOutput:
        output = self.scheduler.schedule()
        sampled = [s for s, n in output.chunks if s.num_computed + n == s.num_tokens]
        spoilt = [seq for seq in sampled if seq in faulty]
        self.scheduler.advance(output, spoilt)
        for seq in sampled:
            seq.token_ids.append(1)
            if seq in spoilt or seq.num_tokens == seq.max_total_tokens:
                self.scheduler.finish(seq)
        return output

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


class TestBudget:
    def test_a_long_prompt_is_computed_in_chunks(self) -> None:
        bench = Bench()
        bench.add(sequence(25))
        assert [sizes(bench.step()) for _ in range(4)] == [[10], [10], [5], [1]]

    def test_decoding_goes_before_prompts_and_prompts_share_what_is_left(self) -> None:
        bench = Bench()
        first, second, third = sequence(3), sequence(12), sequence(5)
        bench.add(first)
        bench.step()
        bench.add(second, third)
        assert bench.step().chunks == [(first, 1), (second, 9)]
        assert bench.step().chunks == [(first, 1), (second, 3), (third, 5)]

    def test_a_long_prompt_does_not_hold_up_those_that_decode(self) -> None:
        bench = Bench()
        long, short = sequence(17), sequence(3)
        bench.add(short)
        bench.step()
        bench.add(long)
        for _ in range(2):
            assert (short, 1) in bench.step().chunks

    def test_forced_tokens_go_before_prompts(self) -> None:
        bench = Bench()
        long, forced = sequence(30), sequence(3, 9)
        bench.add(forced)
        bench.step()
        bench.add(long)
        bench.step()
        forced.token_ids += [7, 7]
        assert bench.step().chunks == [(forced, 3), (long, 7)]

    def test_slots_are_bounded_and_distinct(self) -> None:
        bench = Bench()
        seqs = [sequence(1, 3) for _ in range(MAX_NUM_SEQS + 1)]
        bench.add(*seqs)
        bench.step()
        assert sorted(seq.slot for seq in seqs) == [-1, 0, 1, 2, 3]


class TestBlocks:
    def test_blocks_come_as_the_sequence_grows(self) -> None:
        bench = Bench()
        seq = sequence(4, max_tokens=30)
        bench.add(seq)
        used = []
        for _ in range(9):
            bench.step()
            used.append(bench.pool.num_used)
        assert used == [1, 2, 2, 2, 2, 3, 3, 3, 3]

    def test_the_newest_of_the_lowest_priority_gives_way(self) -> None:
        bench = Bench(num_blocks=6, budget=24)
        important = sequence(4, 16, priority=1)
        older, newer = sequence(4, 16), sequence(4, 16)
        bench.add(older, newer)
        bench.step()
        bench.add(important)
        while not newer.finished and newer.slot >= 0:
            bench.step()
        assert bench.scheduler.preemptions == 1
        assert (older.slot >= 0, important.slot >= 0) == (True, True)
        bench.run()
        assert all(seq.num_tokens == 20 for seq in (important, older, newer))
        assert bench.pool.num_used == 0

    def test_whoever_was_preempted_goes_on_first_and_from_its_cached_blocks(self) -> None:
        bench = Bench(num_blocks=6, budget=24, slots=2)
        older, newer, waiting = sequence(8, 8), sequence(8, 8), sequence(4, 4)
        bench.add(older, newer, waiting)
        while not bench.scheduler.preemptions:
            bench.step()
        assert newer.num_computed == 0
        admitted = [seq for output in bench.run() for seq in output.admitted]
        assert admitted == [newer, waiting]
        assert newer.cached_tokens == 0  # of its own making
        assert newer.num_tokens == 16

    def test_a_small_sequence_does_not_overtake_a_large_one(self) -> None:
        bench = Bench(num_blocks=4, budget=24)
        bench.add(sequence(9, 6), large := sequence(10), small := sequence(1, 1))
        bench.step()
        assert bench.scheduler.num_waiting == 2
        assert large.slot < 0
        assert small.slot < 0

    def test_finishing_frees_at_once_in_every_state(self) -> None:
        bench = Bench()
        running, waiting, never_added = sequence(4), sequence(4), sequence(4)
        bench.add(running)
        bench.step()
        bench.add(waiting)
        scheduler = bench.scheduler
        scheduler.finish(never_added)
        assert (scheduler.num_running, scheduler.num_waiting) == (1, 1)
        for seq in (running, running, waiting, waiting):
            scheduler.finish(seq)
        assert (bench.pool.num_used, scheduler.num_running, scheduler.num_waiting) == (0, 0, 0)
        assert not scheduler.has_work
        assert bench.step().chunks == []


class TestPriorities:
    def test_priority_then_arrival(self) -> None:
        bench = Bench(budget=20)
        low, high, later = sequence(4), sequence(4, priority=5), sequence(4, priority=5)
        bench.add(low, high, later)
        assert bench.step().admitted == [high, later, low]

    def test_a_higher_priority_takes_a_slot_of_a_lower_one(self) -> None:
        bench = Bench(slots=2)
        low = [sequence(3, 30), sequence(3, 30)]
        bench.add(*low)
        bench.step()
        bench.add(high := sequence(3, 2, priority=1))
        assert bench.step().admitted == [high]
        assert [seq.slot >= 0 for seq in low] == [True, False]
        bench.run()
        assert [seq.num_tokens for seq in low] == [33, 33]

    def test_one_that_grew_and_then_made_way_is_not_laid_out(self) -> None:
        bench = Bench(slots=1)
        bench.add(low := sequence(4, 30))
        bench.step()
        bench.add(high := sequence(3, 2, priority=1))
        output = bench.step()
        assert (output.admitted, output.grown) == ([high], [])
        assert low.slot < 0

    def test_a_higher_priority_takes_the_blocks_of_lower_ones(self) -> None:
        bench = Bench(num_blocks=8, budget=40)
        low = [sequence(10, 6), sequence(10, 6)]
        bench.add(*low)
        bench.step()
        bench.add(high := sequence(25, 3, priority=1))
        assert bench.step().admitted == [high]
        assert all(seq.slot < 0 for seq in low)

    def test_a_higher_priority_does_not_wait_for_a_long_prompt(self) -> None:
        bench = Bench(num_blocks=30)
        bench.add(low := sequence(60))
        bench.step()
        bench.add(high := sequence(4, priority=1))
        assert bench.step().chunks == [(high, 4), (low, 6)]

    def test_equals_do_not_take_anything_from_each_other(self) -> None:
        bench = Bench(slots=1)
        bench.add(sequence(3, 5))
        bench.step()
        bench.add(sequence(3, 5))
        bench.run()
        assert bench.scheduler.preemptions == 0


class TestNoStarvation:
    """However many of a higher priority keep coming."""

    def test_one_of_a_lower_priority_starts_and_ends(self) -> None:
        bench = Bench()
        low = sequence(5, max_tokens=30, priority=-5)
        bench.add(low, *(sequence(3, max_tokens=8, priority=1) for _ in range(8)))
        started = self.steps_until(bench, lambda: low.slot != -1)
        assert low.promoted
        # Nobody takes its slot any more, so it ends as soon as it can.
        assert self.steps_until(bench, lambda: low.finished) <= low.sampling.max_tokens + 1
        assert started < 200

    def test_all_of_all_priorities_end_and_one_at_a_time_holds_up_the_higher(self) -> None:
        bench = Bench()
        lows = [sequence(5, max_tokens=9, priority=p) for p in (-2, -1, 0) for _ in range(5)]
        bench.add(*lows)

        def all_ended() -> bool:
            assert sum(seq.promoted and not seq.finished for seq in lows) <= 1
            return all(seq.finished for seq in lows)

        self.steps_until(bench, all_ended)

    def test_a_long_prompt_of_a_lower_priority_goes_on(self) -> None:
        bench = Bench(num_blocks=60)
        low = sequence(100, max_tokens=1)
        bench.add(low)
        bench.step()
        self.steps_until(bench, lambda: low.finished, length=BUDGET, max_tokens=1)
        assert not low.promoted

    @staticmethod
    def steps_until(
        bench: Bench, condition: Callable[[], bool], length: int = 3, max_tokens: int = 8
    ) -> int:
        """Steps beside an endless stream of the highest priority."""
        for steps in range(3_000):
            if condition():
                return steps
            bench.add(sequence(length, max_tokens=max_tokens, priority=1))
            bench.step()
        raise AssertionError("it starves")


class TestFairness:
    def test_backlogged_organizations_get_equal_numbers_of_tokens(self) -> None:
        """Whatever their requests look like: short against long, two against eight at a time."""
        bench = Bench(num_blocks=400, budget=64, slots=8)
        served = {"short": 0, "long": 0}
        shapes = {"short": (20, 5), "long": (150, 60)}
        for name, shape in shapes.items():
            bench.add(*(sequence(*shape, organization=name) for _ in range(600)))
        for _ in range(600):
            for seq, size in bench.step().chunks:
                served[seq.organization] += size
        assert bench.scheduler.num_waiting > 100
        total = sum(served.values())
        assert abs(served["short"] - served["long"]) < 0.1 * total

    def test_a_crowd_does_not_starve_a_small_one(self) -> None:
        """180 requests of one organization before 20 of another: those end with half the rate of
        the service until they are done."""
        bench = Bench(num_blocks=800, budget=128, slots=16)
        crowd = [sequence(30, 20, organization="crowd") for _ in range(180)]
        small = [sequence(30, 20, organization="small") for _ in range(20)]
        bench.add(*crowd)
        bench.step()
        bench.add(*small)
        while not all(seq.finished for seq in small):
            bench.step()
        assert sum(seq.finished for seq in crowd) <= 20 + 2 * 16
        bench.run()

    def test_max_tokens_that_are_not_used_are_paid_back(self) -> None:
        bench = Bench(num_blocks=400, budget=64, slots=8)
        bench.add(*(sequence(10, 9, organization="exact") for _ in range(400)))
        boasts = [sequence(10, 400, organization="boast") for _ in range(400)]
        bench.add(*boasts)
        served = {"exact": 0, "boast": 0}
        for _ in range(400):
            for seq, size in bench.step().chunks:
                served[seq.organization] += size
            for seq in boasts:
                if seq.num_tokens == 19:
                    bench.scheduler.finish(seq)
        assert abs(served["exact"] - served["boast"]) < 0.15 * sum(served.values())

    def test_idle_time_earns_nothing(self) -> None:
        bench = Bench(num_blocks=400, budget=64, slots=4)
        bench.add(*(sequence(20, 20, organization="busy") for _ in range(200)))
        for _ in range(300):
            bench.step()
        late = [sequence(20, 20, organization="late") for _ in range(200)]
        bench.add(*late)
        served = {"busy": 0, "late": 0}
        for _ in range(300):
            for seq, size in bench.step().chunks:
                served[seq.organization] += size
        assert served["late"] < 1.3 * served["busy"]

    def test_nothing_is_remembered_of_those_who_left(self) -> None:
        bench = Bench()
        for number in range(50):
            bench.add(seq := sequence(5, priority=number % 3, organization=str(number)))
            if number % 2:
                bench.scheduler.finish(seq)
        bench.run()
        scheduler = bench.scheduler
        assert scheduler._queue._levels == {}
        assert (scheduler._computing, scheduler._followers, scheduler._following) == ({}, {}, {})


class TestSharing:
    def test_a_second_choice_waits_for_the_prompt_and_computes_one_block_at_most(self) -> None:
        bench = Bench(budget=16)
        choices = [sequence(prefix(18)) for _ in range(3)]
        bench.add(*choices)
        assert sizes(bench.step()) == [16]
        assert bench.scheduler.num_waiting == 2
        assert sizes(bench.step()) == [2]
        assert bench.step().chunks == [(choices[0], 1), (choices[1], 2), (choices[2], 2)]
        assert [seq.cached_tokens for seq in choices] == [0, 16, 16]
        assert [seq.block_ids[:4] for seq in choices[1:]] == [choices[0].block_ids[:4]] * 2

    def test_the_last_token_is_always_computed(self) -> None:
        bench = Bench()
        bench.add(sequence(prefix(8)))
        bench.run()
        bench.add(again := sequence(prefix(8)))
        assert sizes(bench.step()) == [4]
        assert again.cached_tokens == 4

    def test_tokens_from_the_reuse_limit_on_are_computed(self) -> None:
        bench = Bench(budget=40)
        bench.add(sequence(prefix(17)))
        bench.run()
        for limit, cached in ((0, 0), (9, 8), (16, 16), (99, 16)):
            bench.add(seq := sequence(prefix(17)))
            seq.cache_reuse_limit = limit
            assert sizes(bench.step()) == [17 - cached]
            bench.run()

    def test_a_stranger_shares_nothing(self) -> None:
        bench = Bench(budget=40)
        bench.add(sequence(prefix(17), organization="one"))
        bench.run()
        bench.add(stranger := sequence(prefix(17), organization="two"))
        assert sizes(bench.step()) == [17]
        assert stranger.cached_tokens == 0

    def test_nobody_waits_for_a_prompt_that_shares_little(self) -> None:
        bench = Bench(budget=40)
        bench.add(long := sequence(prefix(30)), short := sequence([*prefix(4), 99, 98, 97, 96, 95]))
        assert bench.step().admitted == [long, short]

    def test_followers_of_a_prompt_that_goes_away_go_on(self) -> None:
        bench = Bench(budget=8)
        leader, follower, aborted = (sequence(prefix(20)) for _ in range(3))
        bench.add(leader, follower, aborted)
        bench.step()
        assert bench.scheduler.num_waiting == 2
        bench.scheduler.finish(aborted)
        bench.scheduler.finish(leader)
        assert bench.step().admitted == [follower]
        bench.run()
        assert follower.num_tokens == 24

    def test_a_common_prefix_runs_next_to_each_other_but_holds_nobody_up(self) -> None:
        bench = Bench(num_blocks=100, slots=1, budget=40)
        bench.add(sequence([*prefix(16), 99], 1))
        bench.run()
        others = [sequence(17, 1) for _ in range(3)]
        alike = [sequence([*prefix(16), 200 + i], 1) for i in range(40)]
        bench.add(others[0], *alike[:5], others[1], *alike[5:], others[2])
        order = [seq for output in bench.run() for seq in output.admitted]
        assert order[:5] == alike[:5]
        assert order.index(others[0]) <= 20
        assert {seq.cached_tokens for seq in alike} == {16}

    def test_without_a_cache_nothing_is_shared(self) -> None:
        bench = Bench(budget=40, caching=False)
        choices = [sequence(prefix(18)) for _ in range(2)]
        bench.add(*choices)
        assert sizes(bench.step()) == [18, 18]
        bench.run()
        assert bench.pool.num_idle == 0

    def test_blocks_of_a_faulty_row_are_scrubbed_and_never_found(self) -> None:
        bench = Bench(budget=40)
        bench.add(seq := sequence(prefix(9), 8))
        for _ in range(3):
            bench.step()
        blocks = list(seq.block_ids)
        bench.step(faulty=(seq,))
        assert (bench.pool.num_idle, bench.pool.num_used) == (0, 0)
        bench.add(again := sequence(prefix(9), 8))
        output = bench.step()
        assert again.cached_tokens == 0
        assert set(output.tainted) == set(blocks) & set(again.block_ids)
        assert output.tainted
        bench.run()
        bench.add(sequence(40, 1))
        assert not set(bench.step().tainted) & set(output.tainted)  # once is enough


class SchedulerMachine(RuleBasedStateMachine):
    """Arrivals, faults and aborts at any time, in a cache too small for all."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()
        self.sequences: list[Sequence] = []
        self.dropped: set[Sequence] = set()

    @rule(
        length=st.integers(1, 30),
        start=st.integers(0, 3),
        max_tokens=st.integers(1, 18),
        priority=st.integers(-1, 1),
        organization=st.sampled_from("ab"),
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
        output = self.bench.step(spoilt)
        self.dropped.update(seq for seq in spoilt if seq.finished)
        assert sum(sizes(output)) <= BUDGET
        assert all(size > 0 for size in sizes(output))
        assert len({seq for seq, _ in output.chunks}) == len(output.chunks)
        assert bool(output.chunks) == bool(live)
        if live:  # the most senior always gets on
            highest = max(seq.rank for seq in live)
            top = [seq for seq in live if seq.rank == highest]
            assert any(seq in top for seq, _ in output.chunks)
        for seq, _ in output.chunks:
            assert seq.finished or seq.num_tokens - before[seq] in (0, 1)

    @invariant()
    def blocks_are_held_as_often_as_counted(self) -> None:
        pool, running = self.bench.pool, [seq for seq in self.sequences if seq.slot >= 0]
        held = [block for seq in running for block in seq.block_ids]
        for block in range(1, NUM_BLOCKS + 1):
            assert pool._references[block] == held.count(block)
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
        """By organization too: two sequences that hold a block agree in all up to its end."""
        holders: dict[int, tuple[str, tuple[int, ...]]] = {}
        for seq in self.sequences:
            for index, block in enumerate(seq.block_ids):
                end = (index + 1) * BLOCK_SIZE
                content = (seq.organization, tuple(seq.token_ids[:end]))
                assert holders.setdefault(block, content) == content

    @invariant()
    def the_cache_and_the_pool_agree(self) -> None:
        pool, cache = self.bench.pool, self.bench.cache
        assert cache is not None
        assert pool._kept == set(cache._hashes) == set(cache._blocks.values())
        assert len(cache._blocks) == len(cache._hashes)
        assert set(pool._idle) == {block for block in pool._kept if not pool._references[block]}
        assert not pool._tainted & pool._kept

    def teardown(self) -> None:
        """Whoever was not dropped ends, and all memory comes back."""
        self.bench.run()
        for seq in self.sequences:
            assert seq.finished
            assert seq in self.dropped or seq.num_tokens == seq.max_total_tokens
        assert self.bench.pool.num_used == 0
        assert self.bench.scheduler._queue._levels == {}
        assert not self.bench.scheduler._computing


SchedulerMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None
)
TestScheduler = SchedulerMachine.TestCase
