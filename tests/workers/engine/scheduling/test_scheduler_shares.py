from collections.abc import Callable

from tests.workers.engine.scheduling.scheduler_bench import (
    BUDGET,
    Bench,
    prefix,
    sequence,
    sizes,
)


class TestNoStarvation:
    """Sequences end although others of a higher priority keep coming."""

    def test_one_of_a_lower_priority_starts_and_ends(self) -> None:
        bench = Bench()
        low = sequence(5, max_tokens=30, priority=-5)
        bench.add(low, *(sequence(3, max_tokens=8, priority=1) for _ in range(8)))
        started = self.steps_until(bench, lambda: low.slot != -1)
        assert low.turn.promoted
        # Nobody takes its slot any more, so it ends as soon as it can.
        assert self.steps_until(bench, lambda: low.finished) <= low.sampling.max_tokens + 1
        assert started < 200

    def test_one_that_must_compute_its_tokens_again_keeps_its_turn(self) -> None:
        """As after a draft whose logits were not finite."""
        bench = Bench(slots=1)
        bench.add(low := sequence(3, max_tokens=30))
        self.steps_until(bench, lambda: low.turn.promoted)
        bench.scheduler.settle(low, spoilt=True)
        assert low.slot == -1
        bench.add(sequence(3, priority=1))
        bench.step()
        assert low.slot != -1
        assert low.turn.promoted
        self.steps_until(bench, lambda: low.finished)

    def test_all_of_all_priorities_end_and_one_at_a_time_holds_up_the_higher(self) -> None:
        bench = Bench()
        lows = [sequence(5, max_tokens=9, priority=p) for p in (-2, -1, 0) for _ in range(5)]
        bench.add(*lows)

        def all_ended() -> bool:
            assert sum(seq.turn.promoted and not seq.finished for seq in lows) <= 1
            return all(seq.finished for seq in lows)

        self.steps_until(bench, all_ended)

    def test_a_long_prompt_of_a_lower_priority_goes_on(self) -> None:
        bench = Bench(num_blocks=60)
        low = sequence(100, max_tokens=1)
        bench.add(low)
        bench.step()
        self.steps_until(bench, lambda: low.finished, length=BUDGET, max_tokens=1)
        assert not low.turn.promoted

    @staticmethod
    def steps_until(
        bench: Bench, condition: Callable[[], bool], length: int = 3, max_tokens: int = 8
    ) -> int:
        """Count the steps to the condition, beside endless arrivals of the highest priority."""
        for steps in range(3_000):
            if condition():
                return steps
            bench.add(sequence(length, max_tokens=max_tokens, priority=1))
            bench.step()
        raise AssertionError("it starves")


class TestFairness:
    def test_backlogged_organizations_get_equal_numbers_of_tokens(self) -> None:
        """It holds for short requests against long ones, and for two slots against eight."""
        bench = Bench(num_blocks=400, budget=64, slots=8)
        served = {"short": 0, "long": 0}
        shapes = {"short": (20, 5), "long": (150, 60)}
        for name, shape in shapes.items():
            bench.add(*(sequence(*shape, organization=name) for _ in range(600)))
        for _ in range(600):
            for seq, size in bench.step().chunks:
                served[seq.origin.organization] += size
        assert bench.scheduler.num_waiting > 100
        total = sum(served.values())
        assert abs(served["short"] - served["long"]) < 0.1 * total

    def test_a_crowd_does_not_starve_a_small_one(self) -> None:
        """20 requests of one organization arrive after 180 of another. They get half of the
        service's rate until they end."""
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
                served[seq.origin.organization] += size
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
                served[seq.origin.organization] += size
        assert served["late"] < 1.3 * served["busy"]

    def test_nothing_is_remembered_of_those_who_left(self) -> None:
        bench = Bench()
        for number in range(50):
            bench.add(seq := sequence(5, priority=number % 3, organization=str(number)))
            if number % 2:
                bench.scheduler.finish(seq)
        bench.run()
        scheduler = bench.scheduler
        # Leftovers show in private attributes only.
        assert scheduler._queue._levels == {}
        pending = scheduler._pending
        assert (pending._owners, pending._waiting, pending._awaited) == ({}, {}, {})


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
            seq.prefix.reuse_limit = limit
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

    def test_sequences_that_wait_for_a_prompt_that_goes_away_go_on(self) -> None:
        bench = Bench(budget=8)
        owner, waiting, aborted = (sequence(prefix(20)) for _ in range(3))
        bench.add(owner, waiting, aborted)
        bench.step()
        assert bench.scheduler.num_waiting == 2
        bench.scheduler.finish(aborted)
        bench.scheduler.finish(owner)
        assert bench.step().admitted == [waiting]
        bench.run()
        assert waiting.num_tokens == 24

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
