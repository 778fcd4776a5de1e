from typing import Any

import pytest

from tests.workers.engine.scheduling.scheduler_bench import (
    BLOCK_SIZE,
    MAX_NUM_SEQS,
    Bench,
    sequence,
    sizes,
)
from workers.engine.core.draft import Draft
from workers.engine.core.step import SchedulerOutput


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

    def test_a_draft_leaves_a_block_for_each_running_sequence(self) -> None:
        bench = Bench(num_blocks=6, caching=False)
        drafting, other = sequence(4, 16), sequence(3, 16)
        bench.add(drafting, other)
        bench.step()
        output = bench.scheduler.schedule()
        assert bench.pool.num_free == 3
        assert not bench.scheduler.extend(output, 0, Draft((7,) * 8, (0, 8)))
        assert bench.scheduler.extend(output, 0, Draft((7,) * 4, (0, 4)))
        assert output.chunks == [(drafting, 5), (other, 1)]
        assert bench.pool.num_free == 2

    @pytest.mark.parametrize(
        ("sampled", "is_restored"),
        [([7, 7, 7, 9], False), ([7, 7, 9], True), ([9], True), ([7, 7, 7], True)],
        ids=["all right", "one wrong", "all wrong", "no token after them"],
    )
    def test_a_state_that_a_dropped_token_changed_is_restored(
        self, sampled: list[int], is_restored: bool
    ) -> None:
        bench = Bench()
        seq = sequence(5, 16)
        bench.add(seq)
        bench.step()
        output = bench.scheduler.schedule()
        assert bench.scheduler.extend(output, 0, Draft((7,) * 3, (0, 1, 2, 3), state_row=6))
        assert output.saves[-1] == (seq, 6, 6)
        bench.scheduler.advance(output)
        seq.token_ids.extend(sampled)
        bench.scheduler.settle(seq, spoilt=False)
        following = bench.scheduler.schedule()
        assert following.restores == ([(6, seq.slot)] if is_restored else [])
        assert following.chunks == [(seq, len(sampled) if is_restored else 1)]
        assert seq.num_computed + following.chunks[0][1] == len(seq.token_ids)
        assert bench.scheduler.schedule().restores == []

    @pytest.mark.parametrize("saved_states", [0, 6])
    @pytest.mark.parametrize("is_first", [True, False], ids=["its own token", "the token after"])
    def test_blocks_of_a_draft_whose_logits_were_not_finite_reach_nobody(
        self, is_first: bool, saved_states: int
    ) -> None:
        """The sequence ends in that step: by the error, or by an accepted token before it."""
        bench = Bench(num_blocks=40, budget=40, saved_states=saved_states)
        seq = sequence(2 * BLOCK_SIZE - 1 - (not is_first), 30)
        bench.add(seq)
        bench.step()
        output = bench.scheduler.schedule()
        state_row = 99 if saved_states else None
        bench.scheduler.extend(output, 0, Draft((7,) * 3, (0, 1, 2, 3), state_row=state_row))
        blocks = list(seq.block_ids)
        bench.scheduler.advance(output, faulty=[seq] if is_first else [])
        if not is_first:
            bench.scheduler.taint_drafts([seq])
            seq.token_ids.append(7)
        bench.scheduler.finish(seq)
        bench.scheduler.settle(seq, spoilt=not is_first)
        assert bench.pool.tainted & set(blocks)  # they are scrubbed before others get them
        for _ in range(2):  # the second one finds what the first one computes again
            later = sequence([*seq.token_ids, 8, 9])
            bench.add(later)
            scrubbed = bench.step().tainted
            assert not set(scrubbed) & set(later.block_ids[: later.cached_tokens // BLOCK_SIZE])

    @pytest.mark.parametrize("state_row", [None, 6])
    @pytest.mark.parametrize(
        "other", [{"priority": 1}, {"organization": "b"}], ids=["higher priority", "other owner"]
    )
    def test_a_sequence_whose_state_was_restored_keeps_its_place_in_the_step(
        self, state_row: int | None, other: dict[str, Any]
    ) -> None:
        bench = Bench(num_blocks=40, budget=16)
        seq = sequence(5, 30)
        bench.add(seq)
        bench.step()
        output = bench.scheduler.schedule()
        bench.scheduler.extend(output, 0, Draft((7,) * 3, (0, 1, 2, 3), state_row=state_row))
        bench.scheduler.advance(output)
        seq.token_ids.extend([7, 7, 9])
        bench.scheduler.settle(seq, spoilt=False)
        bench.add(sequence(40, 60, **other))
        following = bench.scheduler.schedule()
        assert following.chunks[0] == (seq, 1 if state_row is None else 3)
        assert sum(size for _, size in following.chunks) == 16

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

    def test_a_preempted_sequence_resumes_first_and_from_its_cached_blocks(self) -> None:
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

    def test_no_step_is_decided_ahead_while_a_higher_priority_waits(self) -> None:
        bench = Bench(slots=2)
        running = [sequence(3, 30), sequence(3, 30)]
        bench.add(*running)
        bench.step()
        flying = SchedulerOutput(chunks=[(seq, 1) for seq in running])
        bench.add(sequence(3, 2))
        assert bench.scheduler.look_ahead(flying, running) is not None
        bench.add(sequence(3, 2, priority=1))
        assert bench.scheduler.look_ahead(flying, running) is None

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
