"""Which sequences draft, what they draft, and what becomes of drafts that fail."""

import dataclasses
import logging
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from tests.workers.engine import greedy
from tests.workers.engine.adapters import save_adapter
from tests.workers.engine.backends.cpu.shapes import RECOGNISED, SHAPES
from tests.workers.engine.backends.cpu.test_decoder import engine_of, save
from tests.workers.engine.driving import EOS, MakeEngine, choice, request, run, tokens
from tests.workers.engine.rows import row
from tests.workers.engine.speculation.drafting import Always, Costless, Guesses, draft_eagerly
from workers.engine.backends.cpu.layers.library import load_library
from workers.engine.core.draft import OWN, SIBLING, Guess, Support
from workers.engine.engine import Engine
from workers.engine.speculation.acceptance import Acceptance, Luck
from workers.engine.speculation.drafter import Drafter
from workers.engine.speculation.siblings import Siblings
from workers.engine.speculation.speculation import Speculation, StepCosts

RECORD = 'start: "{" /[a-d]{2}/ ", the quick brown fox" /[0-9]/ "}"'


class Only:
    """A grammar that allows some tokens, in any order."""

    is_complete, forced, is_slow = False, None, False

    def __init__(self, token_ids: set[int]) -> None:
        self._token_ids = token_ids

    def allows(self, token_id: int) -> bool:
        return token_id in self._token_ids

    def consume(self, token_id: int) -> bool:
        assert self.allows(token_id)
        return False

    def copy(self) -> "Only":
        return self


def without_cost(engine: Engine) -> Speculation:
    assert engine.speculation is not None
    engine.speculation.costs = Costless()  # type: ignore[assignment]
    return engine.speculation


class TestDrafter:
    def test_a_repetition_goes_on_as_before(self) -> None:
        seq = row([5, 6], prompt=[5, 6, 7, 8, 9, 1, 2, 3])
        proposal = Drafter(seq, Siblings(), Acceptance()).propose(least=0.01)
        assert proposal.token_ids[:4] == [7, 8, 9, 1]
        assert proposal.ends[:4] == [1, 2, 3, 4]
        assert proposal.guesses[0] == Guess(OWN, 2)

    def test_a_loop_is_followed_round_and_round(self) -> None:
        seq = row([4, 5, 4, 5, 4], prompt=[1])
        proposal = Drafter(seq, Siblings(), Acceptance()).propose(least=0.001)
        assert proposal.token_ids[:6] == [5, 4, 5, 4, 5, 4]

    def test_a_long_prompt_is_read_in_parts(self) -> None:
        seq = row([1, 2], prompt=[*range(3, 2003), 1, 2, 3])
        seq.max_total_tokens = 3000
        drafter = Drafter(seq, Siblings(), Acceptance())
        lengths = []
        for _ in range(3):
            proposal = drafter.propose(least=0.01)
            lengths.append(len(drafter._index.token_ids))
        assert lengths == [1024, 2004, 2004]
        assert proposal.token_ids[:3] == [3, 1, 2]

    def test_an_unlikely_guess_is_not_drafted(self) -> None:
        seq = row([5, 6], prompt=[5, 6, 7, 8, 9])
        assert not Drafter(seq, Siblings(), Acceptance()).propose(least=0.99).ends

    def test_a_draft_leaves_room_for_the_sampled_token(self) -> None:
        seq = row([5, 6], prompt=[5, 6, *[7] * 60])
        seq.max_total_tokens = seq.num_tokens + 3
        proposal = Drafter(seq, Siblings(), Acceptance()).propose(least=0.001)
        assert proposal.token_ids == [7, 7]

    def test_an_end_of_sequence_is_never_drafted(self) -> None:
        seq = row([5, 6], prompt=[5, 6, 7, EOS, 9])
        assert Drafter(seq, Siblings(), Acceptance()).propose(least=0.01).token_ids == [7]

    def test_siblings_are_copied(self) -> None:
        siblings = Siblings()
        siblings.add(b"family", [1, 5, 6, 7, 8], prompt_len=1)
        seq = row([5, 6], prompt=[1])
        assert not Drafter(seq, siblings, Acceptance()).propose(least=0.01).ends
        seq.origin = dataclasses.replace(seq.origin, family=b"family")
        proposal = Drafter(seq, siblings, Acceptance()).propose(least=0.01)
        assert proposal.token_ids == [7, 8]
        assert proposal.guesses[0] == Guess(SIBLING, 3)

    def test_of_what_siblings_said_the_most_frequent_is_guessed(self) -> None:
        siblings = Siblings()
        for said in (7, 7, 7, 8):
            siblings.add(b"family", [1, 5, 6, said], prompt_len=1)
        seq = row([5, 6], prompt=[1])
        seq.origin = dataclasses.replace(seq.origin, family=b"family")
        proposal = Drafter(seq, siblings, Acceptance()).propose(least=0.01)
        assert proposal.token_ids == [7]
        assert proposal.guesses[0] == Guess(SIBLING, 3, Support.MOST)

    def test_a_guess_that_the_grammar_refuses_makes_room_for_the_next(self) -> None:
        siblings = Siblings()
        for said in (7, 7, 8):
            siblings.add(b"family", [1, 5, 6, said], prompt_len=1)
        seq = row([5, 6], prompt=[1])
        seq.origin = dataclasses.replace(seq.origin, family=b"family")
        seq.choice.grammar = Only({8, 9})
        proposal = Drafter(seq, siblings, Acceptance()).propose(least=0.01)
        assert proposal.token_ids == [8]


class TestAcceptance:
    def test_wrong_guesses_lower_the_share_and_time_restores_it(self) -> None:
        acceptance = Acceptance()
        guess = Guess(OWN, 2)
        first = acceptance.share(guess)
        for _ in range(10):
            acceptance.note(guess, False)
        assert acceptance.share(guess) < first / 3
        assert acceptance.share(Guess(OWN, 5)) > first
        for _ in range(9000):
            acceptance.step()
        assert acceptance.share(guess) == pytest.approx(first, rel=0.01)

    def test_a_sequence_stops_to_trust_its_guesses_and_tries_again(self) -> None:
        of_all = Acceptance()
        for _ in range(200):
            of_all.note(Guess(OWN, 4), True)
        own, other = Luck.make_for_sequence(of_all), Luck.make_for_sequence(of_all)
        first = own.share(Guess(OWN, 5))
        for _ in range(6):
            own.note(Guess(OWN, 4), False)
        assert own.share(Guess(OWN, 5)) < first / 3, "of all kinds"
        assert other.share(Guess(OWN, 5)) == first
        for _ in range(200):
            own.step()
        assert own.share(Guess(OWN, 5)) == pytest.approx(first, rel=0.05)

    def test_wrong_guesses_of_prose_make_all_kinds_unlikely(self) -> None:
        prose, guess = Luck.make_for_prose(Acceptance()), Guess(OWN, 6)
        first = Luck.make_for_sequence(prose).share(guess)
        for matched in (2, 3, 4, 5):
            for support in Support:
                prose.note(Guess(OWN, matched, support), False)
        later = Luck.make_for_sequence(prose)
        assert later.share(guess) < first / 2
        for _ in range(8):
            later.note(guess, True)
        assert later.share(guess) > first, "a copy is noticed soon"

    def test_it_learns_how_often_places_that_differ_are_right(self) -> None:
        acceptance = Acceptance()
        for number in range(300):
            acceptance.note(Guess(SIBLING, 12, Support.SOME), number % 3 == 0)
            acceptance.note(Guess(SIBLING, 12, Support.ALL), True)
        assert acceptance.share(Guess(SIBLING, 12, Support.SOME)) == pytest.approx(1 / 3, abs=0.02)
        assert acceptance.share(Guess(SIBLING, 12, Support.ALL)) > 0.98


class TestCosts:
    def test_more_tokens_never_take_less(self) -> None:
        sizes: list[int] = []
        costs = StepCosts(sizes.append)
        assert len(costs.forward_seconds) == 129
        assert costs.forward_seconds == sorted(costs.forward_seconds)
        assert set(sizes) >= {1, 8, 64}
        assert costs.draft_seconds == 0


class TestEngine:
    def test_siblings_of_one_organization_spare_steps(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        speculation = without_cost(engine)
        asked = request("r", greedy.prompt(5), grammar=RECORD, max_tokens=64)
        steps = []
        for organization in ("a", "a", "b"):
            before = engine.stats().steps
            [completion] = run(engine, replace(asked, organization=organization))
            assert completion.error is None
            steps.append(engine.stats().steps - before)
        assert steps[1] < steps[0] == steps[2]
        assert speculation.accepted_tokens > 0

    def test_a_cache_salt_separates_siblings(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        speculation = without_cost(engine)
        asked = request("r", greedy.prompt(5), grammar=RECORD, max_tokens=64)
        for salt in ("x", "y"):
            run(engine, replace(asked, cache_salt=salt))
        assert speculation.accepted_tokens == 0

    def test_a_drafter_that_raises_ends_the_drafts_of_its_sequence_alone(
        self,
        make_engine: MakeEngine,
        tiny_llama: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        engine = make_engine()
        without_cost(engine)

        def failing(*_: Any) -> None:
            raise ValueError("a bug")

        monkeypatch.setattr(Drafter, "propose", failing)
        prompt = greedy.prompt(9)
        with caplog.at_level(logging.WARNING):
            said = choice(engine, request("r", prompt))
        assert said.token_ids == greedy.generate(tiny_llama, prompt, 16)
        assert caplog.text.count("no longer drafts") == 1

    def test_a_drafted_token_without_finite_logits_harms_nobody(
        self, make_engine: MakeEngine, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        prompts = [greedy.prompt(9), greedy.prompt(7, 1)]
        expected = [greedy.generate(tiny_llama, prompt, 16) for prompt in prompts]
        engine = make_engine()
        draft_eagerly(engine, Always(3))
        forward = engine.runner.forward
        spoilt: list[int] = []

        def spoiling(batch: Any) -> torch.Tensor:
            logits: torch.Tensor = forward(batch)
            drafted = [i for i, s in enumerate(batch.sampled) if s in batch.sampled[:i]]
            logits[drafted] = torch.nan
            slots = batch.metadata.slots[batch.logits_rows[drafted]]
            for layer in engine.runner.cache.layers.values():  # as NaN in a hidden state would
                size = layer.block_size
                pages = layer.key.view(layer.shape.num_kv_heads, -1, size, layer.shape.key_dim)
                pages[:, slots // size, slots % size] = torch.nan
            spoilt.extend(drafted)
            return logits

        monkeypatch.setattr(engine.runner, "forward", spoiling)
        completions = run(engine, *(request(str(i), p) for i, p in enumerate(prompts)))
        assert [c.choices[0].token_ids for c in completions] == expected
        assert len(spoilt) == 2, "each sequence drafts once"
        assert engine.stats().preemptions == 2

    def test_a_draft_whose_copies_cost_more_than_it_saves_is_not_computed(
        self, make_engine: MakeEngine
    ) -> None:
        engine = make_engine()
        draft_eagerly(engine, Always(3))
        assert engine.speculation is not None
        engine.speculation.costs.draft_seconds = 1.0  # as long as a step
        run(engine, request("r"))
        assert engine.stats().drafted_tokens == 0
        engine.speculation.costs.draft_seconds = 0.5
        run(engine, request("s"))
        assert engine.stats().drafted_tokens > 0

    @pytest.mark.wide
    @pytest.mark.skipif(load_library() is None, reason="needs the C kernels")
    def test_a_state_that_a_drafted_token_spoilt_reaches_nobody(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = save(tmp_path, "qwen3_5_text", SHAPES["qwen3_5_text"])
        asked = [
            request(str(i), greedy.prompt(20 + i, i), max_tokens=30, ignore_eos=True)
            for i in range(3)
        ]
        completions = engine_of(path, speculation=False).generate(asked)
        expected = tokens(completions)
        engine = engine_of(path, max_num_seqs=4)
        guesses = Guesses(0.1, Random(3))  # noqa: S311 - guesses, not secrets
        for one, completion in zip(asked, completions, strict=True):
            guesses.learn(one.prompts[0], completion.choices)
        draft_eagerly(engine, guesses)
        forward, spoilt = engine.runner.forward, set[Any]()

        def spoiling(batch: Any) -> torch.Tensor:
            logits: torch.Tensor = forward(batch)
            for index, seq in enumerate(batch.sampled):
                if seq in batch.sampled[:index] and seq not in spoilt and seq.next_output > 9:
                    logits[index] = torch.nan
                    spoilt.add(seq)
                    for states in engine.runner._states._tensors.values():
                        for state in states.values():
                            state[seq.slot] = torch.nan
            return logits

        monkeypatch.setattr(engine.runner, "forward", spoiling)
        assert tokens(engine.generate(asked)) == expected
        assert len(spoilt) == 3
        assert tokens(engine.generate(asked)) == expected

    @pytest.mark.wide
    def test_requests_with_an_adapter_draft_their_own_tokens(
        self, make_engine: MakeEngine, tiny_llama: Path, tmp_path: Path
    ) -> None:
        adapters = {"a": save_adapter(tmp_path, tiny_llama)}
        asked = [
            replace(request(f"{i}", greedy.prompt(6, i)), adapters=("a",) if i % 2 else ())
            for i in range(6)
        ]
        expected = run(make_engine(adapters=adapters, speculation=False), *asked)
        engine = make_engine(adapters=adapters)
        guesses = Guesses(0.1, Random(1))  # noqa: S311 - guesses, not secrets
        for one, completion in zip(asked, expected, strict=True):
            guesses.learn(one.prompts[0], completion.choices)
        draft_eagerly(engine, guesses)
        found = run(engine, *asked)
        assert [c.choices[0].token_ids for c in found] == [c.choices[0].token_ids for c in expected]
        assert engine.stats().drafted_tokens > engine.stats().accepted_tokens > 0

    @pytest.mark.skipif(load_library() is None, reason="needs the C kernels")
    def test_beside_the_c_forward_an_adapter_drafts_nothing(self, tmp_path: Path) -> None:
        path = save(tmp_path / "model", "llama", RECOGNISED["llama"])
        engine = engine_of(path, adapters={"a": save_adapter(tmp_path / "a", path)})
        draft_eagerly(engine, Always(3))
        run(engine, replace(request("r"), adapters=("a",)))
        assert engine.stats().drafted_tokens == 0
        run(engine, request("r"))
        assert engine.stats().drafted_tokens > 0

    def test_speculation_can_be_turned_off(self, make_engine: MakeEngine) -> None:
        engine = make_engine(speculation=False)
        assert engine.speculation is None
        choice(engine, request("r", (5, 6, 5, 6, 5, 6)))
        assert engine.stats().drafted_tokens == 0

    def test_it_is_off_where_the_step_changes_logits(
        self, make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO):
            engine = make_engine(dtype="bfloat16", block_size=4)
        if engine.forward == "c":
            pytest.skip("the C forward computes this model")
        assert engine.speculation is None
        assert "speculation is off" in caplog.text
