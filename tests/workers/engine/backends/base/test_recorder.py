"""Hidden states and routed experts against transformers' own account of the same tokens."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import AutoModelForCausalLM

from completions.contract.sampling import SamplingParams
from tests.representatives import stand_for_all
from tests.workers.engine import greedy
from tests.workers.engine.tiny_models import LLAMA, save_model
from workers.engine.backends.base.recorder import finding_routed_modules
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.core.output import ChoiceDelta
from workers.engine.core.request import Request
from workers.engine.engine import Engine
from workers.engine.exceptions import InvalidRequest

MakeEngine = Callable[..., Engine]

CONFIG = EngineConfig(
    dtype="float32", max_num_seqs=8, max_num_batched_tokens=24, block_size=4, kv_cache_bytes=2**22
)
MIXTURES: dict[str, dict[str, Any]] = {
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen3_moe": {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
                  "head_dim": 16},
    "deepseek_v3": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
                    "moe_intermediate_size": 32, "q_lora_rank": 32, "kv_lora_rank": 16,
                    "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12,
                    "first_k_dense_replace": 1, "num_key_value_heads": 4, "num_hidden_layers": 3},
}  # fmt: skip


@pytest.fixture(scope="module", params=stand_for_all(["deepseek_v3", "mixtral"], sorted(MIXTURES)))
def mixture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = {**LLAMA, "model_type": request.param, **MIXTURES[request.param]}
    return save_model(tmp_path_factory.mktemp(request.param), options)


def ask(prompt: Sequence[int], request_id: str = "r", **fields: Any) -> Request:
    params = fields.pop("sampling", SamplingParams(temperature=0, max_tokens=9, ignore_eos=True))
    return Request((tuple(prompt),), params, **fields, request_id=request_id)


def said(engine: Engine, request: Request) -> ChoiceDelta:
    [completion] = engine.generate([request])
    assert completion.error is None
    return completion.choices[0]


@torch.inference_mode()
def final_hidden_state(path: Path, tokens: Sequence[int]) -> NDArray[np.float32]:
    """Of the last of ``tokens``, after the final norm."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    output = model.model(input_ids=torch.tensor([list(tokens)]))
    hidden: NDArray[np.float32] = output.last_hidden_state[0, -1].numpy()
    return hidden


@torch.inference_mode()
def routed_experts(path: Path, tokens: Sequence[int]) -> NDArray[np.int64]:
    """[tokens, layers, top_k], from what each router's own code returns for the whole text."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    blocks = [m for m in model.modules() if hasattr(m, "experts") and hasattr(m, "gate")]
    chosen = []

    def note(block: Any, args: Any) -> None:
        hidden = args[0].flatten(0, 1)
        if hasattr(block, "route_tokens_to_experts"):
            chosen.append(block.route_tokens_to_experts(block.gate(hidden))[0])
        else:
            chosen.append(block.gate(hidden)[-1])

    for block in blocks:
        block.register_forward_pre_hook(note)
    model(input_ids=torch.tensor([list(tokens)]))
    return torch.stack(chosen, dim=1).numpy()


class TestHiddenStates:
    @pytest.mark.parametrize("max_tokens", [1, 2, 7])
    @pytest.mark.parametrize("length", [1, 30])
    def test_they_are_those_the_last_token_was_chosen_from(
        self, engine: Engine, tiny_llama: Path, length: int, max_tokens: int
    ) -> None:
        prompt = greedy.prompt(length)
        params = SamplingParams(temperature=0, max_tokens=max_tokens)
        choice = said(engine, ask(prompt, sampling=params, return_hidden_states=True))
        expected = final_hidden_state(tiny_llama, [*prompt, *choice.token_ids[:-1]])
        assert choice.hidden_states == pytest.approx(expected.tolist(), abs=1e-4)

    def test_each_choice_gets_its_own_and_neighbours_get_none(
        self, engine: Engine, tiny_llama: Path
    ) -> None:
        params = SamplingParams(temperature=1.0, max_tokens=6, n=3, seed=2, ignore_eos=True)
        asked = ask(greedy.prompt(9), "asked", sampling=params, return_hidden_states=True)
        silent = ask(greedy.prompt(9), "silent", sampling=params)
        first, second = engine.generate([asked, silent])
        assert [c.token_ids for c in first.choices] == [c.token_ids for c in second.choices]
        assert all(c.hidden_states is None for c in second.choices)
        for choice in first.choices:
            tokens = [*greedy.prompt(9), *choice.token_ids[:-1]]
            expected = final_hidden_state(tiny_llama, tokens).tolist()
            assert choice.hidden_states == pytest.approx(expected, abs=1e-4)

    def test_a_forced_end_is_computed_for_them(self, engine: Engine, tiny_llama: Path) -> None:
        grammar = 'start: /[a-c]/ "the quick brown fox"'
        jumped = said(engine, ask((5, 6), grammar=grammar))
        choice = said(engine, ask((5, 6), grammar=grammar, return_hidden_states=True))
        assert choice.token_ids == jumped.token_ids
        expected = final_hidden_state(tiny_llama, [5, 6, *choice.token_ids[:-1]])
        assert choice.hidden_states == pytest.approx(expected.tolist(), abs=1e-4)

    def test_a_choice_without_tokens_has_none(self, engine: Engine) -> None:
        choice = said(engine, ask((5, 6), grammar='start: ""', return_hidden_states=True))
        assert (choice.token_ids, choice.hidden_states) == ([], None)

    @pytest.mark.parametrize("cut", [0, 1, 5, 8, 9])
    @pytest.mark.parametrize("grammar", [None, 'start: /[a-z]/ " the quick" /[0-9]{9}/'])
    def test_a_resumed_run_tells_the_same(
        self, engine: Engine, cut: int, grammar: str | None
    ) -> None:
        whole = ask(greedy.prompt(7), grammar=grammar, return_hidden_states=True)
        expected = said(engine, whole)
        published = tuple(expected.token_ids[:cut])
        rest = ask(
            whole.prompts[0], grammar=grammar, return_hidden_states=True, published={0: published}
        )
        [completion] = engine.generate([rest])
        [choice] = completion.choices
        assert [*published, *choice.token_ids] == expected.token_ids
        assert choice.hidden_states == pytest.approx(expected.hidden_states, abs=1e-4)
        assert completion.usage is not None
        assert completion.usage.completion_tokens == 9
        assert engine.stats().kv_blocks_used == 0


class TestRoutedExperts:
    @pytest.mark.represented_by("deepseek_v3-0")
    @pytest.mark.parametrize("start", [0, 5, 30])
    def test_they_are_those_of_prompt_and_output(self, mixture: Path, start: int) -> None:
        engine = build_engine(mixture, CONFIG)
        prompt = greedy.prompt(30)
        neighbours = [ask(greedy.prompt(8, salt), str(salt)) for salt in range(3)]
        asked = ask(prompt, return_routed_experts=True, routed_experts_start_len=start)
        *others, completion = engine.generate([*neighbours, asked])
        [choice] = completion.choices
        assert choice.routed_experts is not None
        assert choice.routed_experts.dtype == np.int32
        expected = routed_experts(mixture, [*prompt, *choice.token_ids[:-1]])[start:]
        assert len(expected) == 30 + len(choice.token_ids) - 1 - start
        assert choice.routed_experts.shape == expected.shape
        assert (np.sort(choice.routed_experts) == np.sort(expected)).all()
        assert all(c.routed_experts is None for o in others for c in o.choices)

    def test_a_resumed_run_tells_the_same(self, mixture: Path) -> None:
        engine = build_engine(mixture, CONFIG)
        expected = said(engine, ask(greedy.prompt(7), return_routed_experts=True))
        for cut in (0, 3, 9):
            published = {0: tuple(expected.token_ids[:cut])}
            rest = said(
                engine, ask(greedy.prompt(7), return_routed_experts=True, published=published)
            )
            assert (rest.routed_experts == expected.routed_experts).all()

    def test_a_dense_model_refuses(self, engine: Engine) -> None:
        with pytest.raises(InvalidRequest, match="this model has no experts"):
            engine.submit(ask((5, 6), return_routed_experts=True))

    @pytest.mark.represented_by("deepseek_v3--1")
    @pytest.mark.parametrize("start", [-1, 8])
    def test_a_start_outside_the_prompt_is_refused(self, mixture: Path, start: int) -> None:
        engine = build_engine(mixture, CONFIG)
        request = ask(greedy.prompt(7), return_routed_experts=True, routed_experts_start_len=start)
        with pytest.raises(InvalidRequest, match="from 0 to the prompt's 7 tokens"):
            engine.submit(request)


class TestHooks:
    def test_none_are_there_unless_somebody_asks(
        self, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine = make_engine()
        hooked: list[nn.Module] = []
        register = nn.Module.register_forward_pre_hook

        def count(module: nn.Module, *args: Any, **options: Any) -> Any:
            hooked.append(module)
            return register(module, *args, **options)

        monkeypatch.setattr(nn.Module, "register_forward_pre_hook", count)
        said(engine, ask((5, 6)))
        assert hooked == []
        said(engine, ask((5, 6), return_hidden_states=True))
        assert len(hooked) == 9
        assert not hooked[0]._forward_pre_hooks

    def test_experts_of_different_numbers_are_not_seen(self) -> None:
        class Experts(nn.Module):
            def forward(self, hidden: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
                return hidden

        class Mixed(nn.Module):
            def __init__(self, *widths: int) -> None:
                super().__init__()
                self.widths = widths
                self.layers = nn.ModuleList(Experts() for _ in widths)

            def forward(self, hidden: torch.Tensor) -> torch.Tensor:
                for width, layer in zip(self.widths, self.layers, strict=True):
                    hidden = layer(hidden, torch.zeros(len(hidden), width, dtype=torch.int64))
                return hidden

        for widths, seen in (((2, 2), 2), ((2, 1), 0)):
            model = Mixed(*widths)
            with finding_routed_modules(model) as modules:
                model(torch.zeros(2, 8))
            assert len(modules) == seen
            assert not any(m._forward_pre_hooks for m in model.modules())
