from tests.workers.engine.scheduling.scheduler_bench import BLOCK_SIZE, Bench, prefix, sequence
from workers.engine.core.draft import Draft
from workers.engine.core.sequence import Sequence
from workers.engine.scheduling.saved_states import INTERVAL, SavedStates, StatefulPrefixCache
from workers.engine.scheduling.scheduler import Scheduler


def make(saved_states: int = 6, budget: int = 1000) -> Bench:
    return Bench(num_blocks=400, budget=budget, saved_states=saved_states)


def started_with(bench: Bench, prompt: list[int], max_tokens: int = 1) -> int:
    """How many tokens of this prompt a sequence finds, which then runs to its end."""
    seq = sequence(prompt, max_tokens)
    bench.add(seq)
    bench.run()
    return seq.cached_tokens


def saved_at(bench: Bench, seq: Sequence) -> list[int]:
    bench.add(seq)
    return [save.num_tokens for output in bench.run() for save in output.saves]


def test_a_prompt_is_found_again_up_to_its_last_full_block() -> None:
    bench = make()
    assert started_with(bench, prefix(22)) == 0
    assert started_with(bench, prefix(22)) == 20
    assert started_with(bench, prefix(20)) == 0  # its state after 16 tokens was not saved
    assert started_with(bench, prefix(20)) == 16


def test_where_prompts_part_is_saved_for_the_third() -> None:
    bench = make()
    assert started_with(bench, prefix(12) + [90] * 10) == 0
    assert started_with(bench, prefix(12) + [91] * 10) == 0
    assert started_with(bench, prefix(12) + [92] * 10) == 12


def test_of_prompts_that_come_together_the_others_wait_for_the_state_where_they_part() -> None:
    bench = make()
    sequences = [sequence([*prefix(12), 90 + i, 91 + i, 92 + i, 93 + i], 2) for i in range(3)]
    bench.add(*sequences)
    bench.run()
    assert [seq.cached_tokens for seq in sequences] == [0, 12, 12]


def test_a_long_prompt_is_saved_at_intervals() -> None:
    step = INTERVAL * BLOCK_SIZE
    assert saved_at(make(), sequence(2 * step + 7, 1)) == [step, 2 * step, 2 * step + 4]


def test_output_is_saved_at_its_newest_border_only() -> None:
    bench = make()
    seq = sequence(prefix(5), 12)
    assert saved_at(bench, seq) == [4, 8, 12, 16]
    assert isinstance(bench.cache, StatefulPrefixCache)
    assert len(bench.cache.saved) == 2  # of the prompt and of the newest border
    assert started_with(bench, [*seq.token_ids, 7, 8]) == 16


def drafted(bench: Bench, seq: Sequence, gained: list[int]) -> list[int]:
    """Where states are saved, beside the copy, in a step that drafts ten tokens and keeps some."""
    output = bench.scheduler.schedule()
    assert bench.scheduler.extend(output, 0, Draft((7,) * 10, (0, 10), state_row=99))
    bench.scheduler.advance(output)
    seq.token_ids.extend(gained)
    if seq.num_tokens >= seq.max_total_tokens:
        bench.scheduler.finish(seq)
    bench.scheduler.settle(seq, spoilt=False)
    saves = [save for save in output.saves if save.row != 99]
    for _, num_tokens, row in saves:
        bench.states[row] = seq.origin.organization, seq.token_ids[:num_tokens]
    return [save.num_tokens for save in saves]


def test_a_border_inside_a_draft_is_saved_if_the_draft_is_right() -> None:
    bench = make()
    seq = sequence(prefix(5), 30)
    bench.add(seq)
    bench.step()
    assert drafted(bench, seq, [7] * 10 + [9]) == [16]
    assert isinstance(bench.cache, StatefulPrefixCache)
    assert len(bench.cache.saved) == 2
    assert started_with(bench, [*seq.token_ids, 8]) == 16


def test_a_border_inside_a_refused_draft_is_saved_when_it_is_computed_again() -> None:
    bench = make()
    seq = sequence(prefix(5), 30)
    bench.add(seq)
    bench.step()
    assert drafted(bench, seq, [7, 7, 7, 9]) == [16]
    assert isinstance(bench.cache, StatefulPrefixCache)
    assert len(bench.cache.saved) == 1
    again = bench.step()
    assert again.chunks == [(seq, 4)]
    assert [save.num_tokens for save in again.saves] == [8]
    assert started_with(bench, [*seq.token_ids[:9], 8]) == 8


def test_a_sequence_that_ends_within_a_draft_leaves_its_newest_border() -> None:
    bench = make()
    seq = sequence(prefix(5), 12)
    bench.add(seq)
    bench.step()
    assert drafted(bench, seq, [7] * 10 + [9]) == [16]
    assert seq.finished
    assert started_with(bench, [*seq.token_ids, 8]) == 16


def test_a_preempted_sequence_starts_from_a_saved_state() -> None:
    bench = Bench(num_blocks=7, budget=30, saved_states=6)
    senior, junior = sequence(9, 6), sequence(9, 14)
    bench.add(senior, junior)
    bench.run()
    assert bench.scheduler.preemptions == 1
    assert junior.num_tokens == junior.max_total_tokens
    assert junior.prefix.states.restored_from is not None


def test_an_evicted_block_takes_its_state_along() -> None:
    bench = Bench(num_blocks=6, budget=100, saved_states=6)
    assert started_with(bench, prefix(22)) == 0
    assert started_with(bench, prefix(22, start=100)) == 0
    assert started_with(bench, prefix(22)) == 0


def test_without_room_for_states_nothing_is_found() -> None:
    bench = make()
    cache = StatefulPrefixCache(bench.pool, BLOCK_SIZE, [])
    bench.cache = cache
    bench.scheduler = Scheduler(bench.pool, cache, BLOCK_SIZE, bench.slots, bench.budget)
    assert started_with(bench, prefix(22)) == 0
    assert started_with(bench, prefix(22)) == 0


def test_the_least_recently_used_state_gives_way() -> None:
    saved = SavedStates([0, 1])
    for digest in (b"a", b"b"):
        row = saved.take()
        assert row is not None
        saved.add(digest, row)
    row = saved.use(b"a")
    assert saved.take() != row
    assert b"a" in saved
    assert b"b" not in saved


def test_of_equal_states_one_is_kept() -> None:
    saved = SavedStates([0, 1])
    first, second = saved.take(), saved.take()
    assert first is not None
    assert second is not None
    assert saved.take() is None
    saved.add(b"a", first)
    saved.add(b"a", second)
    assert saved.use(b"a") == first
    assert saved.take() == second
