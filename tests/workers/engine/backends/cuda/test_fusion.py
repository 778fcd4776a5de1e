"""What is fused, with kernels of torch operations that round as the modules do: not one bit of the
logits may change, whatever the modules do between the operations."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoTokenizer

from completions.contract.sampling import SamplingParams
from tests.workers.engine import greedy
from tests.workers.engine.adapters import merge, save_adapter
from tests.workers.engine.backends.cuda.without_gpu.plain_kernels import PlainKernels
from workers.engine.backends.base.paged import PagedModel
from workers.engine.backends.cuda import fusion
from workers.engine.backends.cuda.backend import CudaBackend
from workers.engine.backends.cuda.fusable import get_norm_rule, get_rotation
from workers.engine.backends.cuda.fusion import Fusion
from workers.engine.build import compose_engine
from workers.engine.checkpoints.loader import wrap_model
from workers.engine.checkpoints.parity.probe import probe
from workers.engine.checkpoints.parity.trial import Batches
from workers.engine.config import EngineConfig
from workers.engine.core.request import Request
from workers.engine.engine import Engine

HERE = torch.device("cpu")
SIZES = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 128,
}  # fmt: skip
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}

JOINED = ["add and normalize", "rotate and store", "gate"]
FUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "llama": ({}, JOINED),
    "qwen3": ({}, [*JOINED, "normalize"]),
    "gemma": ({}, JOINED),
    "gemma2": ({}, [*JOINED, "normalize"]),
    "gemma3_text": ({}, [*JOINED, "normalize"]),
    "phi3": ({}, JOINED),
    "granite": ({}, JOINED),
    "olmo2": ({}, ["normalize", "rotate and store", "gate"]),
    "glm4": ({}, JOINED),
    "ernie4_5": ({}, JOINED),
    "helium": ({}, JOINED),
    "cohere": ({}, ["rotate and store", "gate"]),
    "gpt_oss": (EXPERTS, ["add and normalize", "rotate and store"]),
    "mixtral": (EXPERTS, JOINED),
    "llama4_text": (EXPERTS, ["add and normalize", "store", "gate"]),
    "phi": ({}, ["rotate", "store"]),
    "gpt_neox": ({}, ["rotate and store"]),
    "opt": ({}, ["store"]),
    "smollm3": ({"no_rope_layers": [1, 0]}, [*JOINED, "store"]),
}
"""By model type: options, and the kernels that run in its forward, at the least."""


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> PlainKernels:
    plain = PlainKernels()
    monkeypatch.setattr(fusion, "kernels", lambda: plain)
    return plain


def make_model(model_type: str, options: dict[str, Any], dtype: torch.dtype) -> Any:
    torch.manual_seed(1)
    config = CONFIG_MAPPING[model_type](**{**SIZES, **options})
    make: Any = AutoModelForCausalLM.from_config
    model = make(config, dtype=dtype, attn_implementation=CudaBackend(HERE).attention).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.normal_(0.8, 0.3)
    return model


def logits_of(paged: PagedModel, backend: CudaBackend) -> Tensor:
    """The logits of two texts in chunks, with prompts and single tokens in one batch."""
    shapes = probe(paged, backend, 4, HERE).shapes
    texts = [[(7 * i + 3) % 64 for i in range(n)] for n in (9, 14)]
    with torch.inference_mode():
        return Batches(paged, backend, 4, shapes).run(texts, [6, 11], [4, 5])


@pytest.mark.represented_by("llama-dtype0", "gpt_oss-dtype0")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("model_type", FUSED)
def test_no_bit_changes(kernels: PlainKernels, model_type: str, dtype: torch.dtype) -> None:
    options, expected = FUSED[model_type]
    model, backend = make_model(model_type, options, dtype), CudaBackend(HERE)
    plain = logits_of(PagedModel(model), backend)
    paged = PagedModel(model)
    paged.fusion = Fusion(model)
    fused = logits_of(paged, backend)
    if dtype == torch.bfloat16:
        assert torch.equal(plain, fused)
    else:
        torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-5)
    assert kernels.calls.keys() >= set(expected)
    assert torch.equal(logits_of(PagedModel(model), backend), plain), "fusion stays active"


class Norm(nn.Module):
    def __init__(self, size: int = 8) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, dtype=torch.bfloat16), requires_grad=False)
        self.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        numbers = x.float()
        normal = numbers * torch.rsqrt(numbers.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * normal.to(x.dtype)


class Centred(Norm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x - x.mean(-1, keepdim=True))


class OtherEpsilon(Norm):
    def forward(self, x: Tensor) -> Tensor:
        self.eps, kept = 1e-3, self.eps
        try:
            return super().forward(x)
        finally:
            self.eps = kept


class Gated(Norm):
    """As those of Mamba 2: an optional gate, which is applied before the norm."""

    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        return super().forward(hidden_states if gate is None else hidden_states * silu(gate))


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.bfloat16)


@pytest.mark.parametrize("module", [Centred(), OtherEpsilon(), nn.LayerNorm(8), nn.Linear(8, 8)])
def test_other_modules_are_no_such_norms(module: nn.Module) -> None:
    assert get_norm_rule(module) is None


def test_another_rotation_is_not_recognised() -> None:
    def scaled(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        return q * cos, k * sin

    assert get_rotation(scaled, torch.bfloat16, torch.bfloat16, 8, 8) is None


def test_a_sum_that_no_norm_follows_is_an_ordinary_sum(kernels: PlainKernels) -> None:
    a, b, other = draw(1, 3, 8), draw(1, 3, 8), draw(1, 3, 8)
    norm = Norm()
    expected = norm(other)
    with Fusion(norm):
        total = a + b
        a_before, a[:] = a.clone(), 0  # too late to change the sum
        normal = norm(other)
        last = b + other
    assert torch.equal(total, a_before + b)
    assert torch.equal(normal, expected)
    assert torch.equal(last, b + other), "the context ends without the last sum"
    assert kernels.calls == {"normalize": 1}


def test_hooks_see_the_numbers(kernels: PlainKernels) -> None:
    a, b, norm = draw(1, 3, 8), draw(1, 3, 8), Norm()
    seen: list[Tensor] = []
    norm.register_forward_pre_hook(lambda _module, args: seen.append(args[0].clone()))
    with Fusion(norm):
        norm(a + b)
    assert torch.equal(seen[0], a + b)


def test_a_norm_takes_further_arguments(kernels: PlainKernels) -> None:
    norm, x, gate = Gated(), draw(1, 3, 8), draw(1, 3, 8)
    plain, gated = norm(x), norm(x, gate)
    fusing = Fusion(norm)
    with fusing:
        assert torch.equal(norm(x), plain)
        assert torch.equal(norm(x, gate), gated)
        assert torch.equal(norm(hidden_states=x), plain)
    assert kernels.calls == {"normalize": 1, "gate": 1}
    assert torch.equal(norm(x, gate), gated)
    fusing.remove()
    assert "forward" not in vars(norm)


def test_an_activation_waits_for_its_product_only(kernels: PlainKernels) -> None:
    gate, up, weight = draw(3, 8), draw(3, 8), draw(8, 8)
    with Fusion(Norm()):
        gated = silu(gate) * nn.functional.linear(up, weight)
        active = silu(gate)
        sums = active + up
        of_active = nn.functional.linear(silu(gate), weight)
        broadcast = silu(gate) * up[:1]
        scaled = silu(gate) * 2.0
        unused = silu(gate)
        up.mul_(2)
    up /= 2
    assert torch.equal(gated, silu(gate) * nn.functional.linear(up, weight))
    assert torch.equal(sums, silu(gate) + up)
    assert torch.equal(of_active, nn.functional.linear(silu(gate), weight))
    assert torch.equal(broadcast, silu(gate) * up[:1])
    assert torch.equal(scaled, silu(gate) * 2.0)
    assert torch.equal(unused, silu(gate))
    assert kernels.calls == {"gate": 1}


@pytest.mark.filterwarnings("ignore:This overload of add is deprecated")
def test_keywords_are_arguments_too(kernels: PlainKernels) -> None:
    gate, up, weight, into = draw(3, 8), draw(3, 8), draw(8, 8), torch.zeros(3, 8).bfloat16()
    a, b = draw(1, 3, 8), draw(1, 3, 8)
    with Fusion(Norm()):
        active = silu(gate)
        of_active = nn.functional.linear(input=active, weight=weight)
        torch.mul(silu(gate), up, out=into)
        added = torch.add(a, 2, b)
    assert torch.equal(of_active, nn.functional.linear(silu(gate), weight))
    assert torch.equal(into, silu(gate) * up)
    assert torch.equal(added, a + 2 * b)
    assert not kernels.calls


def test_an_activation_may_be_used_again(kernels: PlainKernels) -> None:
    gate, up = draw(3, 8), draw(3, 8)
    with Fusion(Norm()):
        active = silu(gate)
        product = active * up
        later = active + 1
        kept = silu(gate)
        _ = kept * up
    assert torch.equal(product, silu(gate) * up)
    assert torch.equal(later, silu(gate) + 1)
    assert torch.equal(kept, silu(gate))
    assert kernels.calls == {"gate": 2}


def test_a_weight_for_all_columns_is_not_fused(kernels: PlainKernels) -> None:
    norm, x = Norm(1), draw(1, 3, 8)
    expected = norm(x)
    with Fusion(norm):
        assert torch.equal(norm(x), expected)
    assert not kernels.calls


def test_stored_heads_have_adjacent_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    strides: list[int] = []
    plain: Any = PlainKernels()
    plain.store = lambda *args: strides.extend(x.stride(-1) for x in args[:2])
    monkeypatch.setattr(fusion, "kernels", lambda: plain)
    heads = draw(1, 2, 4, 3).transpose(2, 3)
    layer: Any = None
    Fusion(Norm()).store((heads, heads, heads), layer, torch.arange(3), keeps=True)
    assert strides == [1, 1]


def test_a_failed_forward_leaves_nothing_behind(kernels: PlainKernels) -> None:
    def fail_after_sum(x: Tensor) -> None:
        _ = x + x
        raise ZeroDivisionError

    norm: Any = Norm()
    fusing = Fusion(norm)
    own = norm.forward
    norm.forward = fail_after_sum
    with pytest.raises(ZeroDivisionError), fusing:
        norm(draw(1, 3, 8))
    norm.forward = own
    with fusing:
        norm(draw(1, 3, 8))
    assert kernels.calls == {"normalize": 1}
    norm(draw(1, 3, 8))
    assert kernels.calls == {"normalize": 1}, "fusion stays active"


def make_engine(path: Path, **settings: Any) -> Engine:
    config = EngineConfig(
        device="cpu", dtype="float32", block_size=4, max_num_seqs=4, max_num_batched_tokens=24,
        kv_cache_bytes=2**22, **settings,
    )  # fmt: skip
    backend = CudaBackend(HERE)
    backend.fuses = True
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation=backend.attention)
    return compose_engine(
        wrap_model(model, AutoTokenizer.from_pretrained(path), backend, config), config
    )


def norms_of(engine: Engine) -> list[nn.Module]:
    runner: Any = engine.runner
    return [m for m in runner._model.model.modules() if type(m).__name__ == "LlamaRMSNorm"]


def assert_greedy(engine: Engine, path: Path) -> None:
    prompts = [greedy.prompt(1 + 7 * i, salt=i) for i in range(5)]
    params = SamplingParams(max_tokens=10, temperature=0)
    requests = [Request((prompt,), params, request_id=str(i)) for i, prompt in enumerate(prompts)]
    for prompt, completion in zip(prompts, engine.generate(requests), strict=True):
        assert completion.choices[0].token_ids == greedy.generate(path, prompt, 10)


def test_an_engine_fuses(kernels: PlainKernels, tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    kernels.calls.clear()
    assert_greedy(engine, tiny_llama)
    assert kernels.calls.keys() >= set(JOINED)


def test_adapters_and_records_see_every_number(
    kernels: PlainKernels, tiny_llama: Path, tmp_path: Path
) -> None:
    folder = save_adapter(tmp_path / "adapter", tiny_llama)
    scaling = dict.fromkeys(("q_proj", "v_proj", "down_proj"), 2.0)
    merged = merge(tiny_llama, folder, scaling, tmp_path / "merged")
    params = SamplingParams(max_tokens=10, temperature=0)
    prompt = greedy.prompt(9)
    requests = [
        Request(
            (prompt,),
            params,
            adapters=("a",),
            return_hidden_states=True,
            request_id="adapted",
        ),
        Request((prompt,), params, return_hidden_states=True, request_id="plain"),
    ]
    fused = make_engine(tiny_llama, adapters={"a": folder})
    adapted, plain = fused.generate(requests)
    assert adapted.choices[0].token_ids == greedy.generate(merged, prompt, 10)
    assert plain.choices[0].token_ids == greedy.generate(tiny_llama, prompt, 10)
    assert kernels.calls.keys() >= set(JOINED)
    fused.runner._model.fusion = None  # type: ignore[union-attr]
    for before, after in zip([adapted, plain], fused.generate(requests), strict=True):
        expected = after.choices[0].hidden_states
        assert before.choices[0].hidden_states == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_a_model_that_differs_with_fusion_runs_without(
    kernels: PlainKernels,
    tiny_llama: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(kernels, "gate", lambda x, up, _activation: x * up)
    engine = make_engine(tiny_llama)
    assert "operations are not fused, since" in caplog.text
    kernels.calls.clear()
    assert_greedy(engine, tiny_llama)
    assert not kernels.calls
    assert not any("forward" in vars(m) for m in norms_of(engine)), "norms stay wrapped"


def test_enforce_eager_turns_fusion_off(kernels: PlainKernels, tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama, enforce_eager=True)
    assert_greedy(engine, tiny_llama)
    assert not kernels.calls


def test_a_model_that_cannot_be_studied_runs_without(
    kernels: PlainKernels,
    tiny_llama: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_module: nn.Module) -> None:
        raise ValueError("no signature found for builtin")

    monkeypatch.setattr(fusion, "get_norm_rule", fail)
    engine = make_engine(tiny_llama)
    assert "operations are not fused, since ValueError('no signature" in caplog.text
    assert_greedy(engine, tiny_llama)
    assert not kernels.calls


def test_a_class_of_an_unknown_module_is_no_obstacle(kernels: PlainKernels) -> None:
    made = type("Made", (Norm,), {"__module__": "not.imported"})()
    x = draw(1, 3, 8)
    with Fusion(made):
        made(x)
    assert kernels.calls == {"normalize": 1}
