"""What only a GPU can show: the kernel, graphs, pinned copies, and how much memory is left."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

from completions.contract.job_request import LogprobParams
from completions.contract.sampling import SamplingParams
from tests.workers.engine import greedy
from tests.workers.engine.backends.cuda import chosen_tokens
from tests.workers.engine.backends.cuda.test_hybrids import FAMILIES, save_family
from tests.workers.engine.backends.sparse import models as sparse_models
from tests.workers.engine.driving import tokens
from workers.engine.backends.base.transfers import to_device
from workers.engine.backends.cpu.attention import AttentionRule
from workers.engine.backends.cuda.attention import attend_gathered, attend_paged, has_paged_kernel
from workers.engine.backends.cuda.inputs import mix_metadata
from workers.engine.backends.cuda.kernel_check import (
    why_no_fused_kernels,
    why_no_latent_kernel,
    why_no_split_kernel,
)
from workers.engine.backends.cuda.kv_cache import TokenMajorCache, Way
from workers.engine.backends.cuda.runner import CudaRunner
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.core.layer_shape import LayerShape, Visible
from workers.engine.core.request import Request
from workers.engine.engine import Engine
from workers.engine.grammar.device_masks import forbidden_tokens

GPU = torch.device("cuda", 0)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]
needs_kernel = pytest.mark.skipif(
    not (torch.cuda.is_available() and has_paged_kernel(GPU)),
    reason="needs a GPU and a torch with FlashAttention over pages",
)

GRAMMARED = 'start: /[0-9]/ " the quick brown fox " /[a-z]{3,9}/'


def make_engine(path: Path, **settings: object) -> Engine:
    small = {"max_num_seqs": 6, "max_num_batched_tokens": 24, "block_size": 4}
    config = {"device": "cuda:0", "kv_cache_bytes": 2**26, **small, **settings}
    return build_engine(path, EngineConfig(**config))  # type: ignore[arg-type]


def mixed_requests() -> list[Request]:
    params = (
        {"temperature": 0.0},
        {"seed": 1, "top_p": 0.9, "top_k": 40},
        {"seed": 2, "frequency_penalty": 0.5, "logit_bias": {9: 2.0}},
    )
    free = [
        Request(
            (greedy.prompt(1 + 7 * i, salt=i),),
            SamplingParams(max_tokens=10, **p),
            request_id=str(i),
        )
        for i, p in enumerate(params * 3)
    ]
    bound = SamplingParams(max_tokens=60, seed=5, n=2)
    return [*free, Request((greedy.prompt(9),), bound, GRAMMARED, request_id="grammar")]


def test_the_kernels_in_triton_work_here() -> None:
    device = torch.device("cuda", 0)
    assert why_no_split_kernel(device) is None
    assert why_no_fused_kernels(device) is None
    assert why_no_latent_kernel(device) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_chosen_tokens_are_read_in_place_as_if_they_were_gathered(dtype: torch.dtype) -> None:
    whole = chosen_tokens.compare_latents(GPU, dtype, is_chosen=False, window=None)
    chosen = chosen_tokens.compare_latents(GPU, dtype, is_chosen=True, window=20)
    spans = chosen_tokens.compare_spans(GPU, dtype, size=5, choices=4, is_mixed=True)
    assert (whole, chosen, spans) == (1, 2, 2)


@pytest.mark.filterwarnings("ignore")  # transformers on kernels that it would like
@pytest.mark.parametrize("family", sparse_models.FAMILIES)
def test_what_an_indexer_chooses_on_a_gpu_says_what_the_cpu_says(
    tmp_path: Path, family: str
) -> None:
    path = sparse_models.save(tmp_path, family)
    here = make_engine(path, device="cpu", dtype="float32").generate(mixed_requests())
    engine = make_engine(path, dtype="float32")
    assert engine.forward == "cuda"
    for _ in range(2):
        assert tokens(engine.generate(mixed_requests())) == tokens(here)


@pytest.mark.filterwarnings("ignore")  # transformers on kernels that it would like
@pytest.mark.parametrize("family", sparse_models.FAMILIES)
def test_models_with_an_indexer_keep_our_kernels_in_sixteen_bits(
    tmp_path: Path, family: str
) -> None:
    """Loading them compares their logits with those of their own attention."""
    engine = make_engine(sparse_models.save(tmp_path, family), dtype="bfloat16")
    runner = engine.runner
    assert isinstance(runner, CudaRunner)
    ways = {layer.way for layer in runner.cache.layers.values()}
    assert ways == ({Way.LATENTS, Way.SPLIT} if "minimax" in family else {Way.LATENTS})
    assert all(done.error is None for done in engine.generate(mixed_requests()))


def test_float32_says_what_the_cpu_says(tiny_llama: Path) -> None:
    here = make_engine(tiny_llama, device="cpu", dtype="float32").generate(mixed_requests())
    there = make_engine(tiny_llama, dtype="float32").generate(mixed_requests())
    assert tokens(there) == tokens(here)
    assert tokens(there[:1]) == [greedy.generate(tiny_llama, greedy.prompt(1), 10)]


@pytest.mark.filterwarnings("ignore")  # transformers on kernels that it would like
@pytest.mark.parametrize("name", FAMILIES)
def test_states_on_a_gpu_say_what_the_cpu_says(tmp_path: Path, name: str) -> None:
    path = save_family(tmp_path, name)
    here = make_engine(path, device="cpu", dtype="float32").generate(mixed_requests())
    engine = make_engine(path, dtype="float32")
    assert engine.forward == "cuda"
    for _ in range(2):
        assert tokens(engine.generate(mixed_requests())) == tokens(here)


def test_graphs_compute_what_the_eager_model_computes(tiny_llama: Path) -> None:
    captured = make_engine(tiny_llama, dtype="bfloat16")
    runner = captured.runner
    assert isinstance(runner, CudaRunner)
    assert runner.graphs is not None
    assert_same_scores(captured, make_engine(tiny_llama, dtype="bfloat16", enforce_eager=True))


@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"deepseek_v4"}))
def test_graphs_continue_states_as_the_eager_model_does(tmp_path: Path, name: str) -> None:
    path = save_family(tmp_path, name)
    captured = make_engine(path, dtype="bfloat16")
    runner = captured.runner
    assert isinstance(runner, CudaRunner)
    assert runner.graphs is not None
    assert_same_scores(captured, make_engine(path, dtype="bfloat16", enforce_eager=True))


def assert_same_scores(captured: Engine, eager: Engine) -> None:
    """Compare log probabilities. Tokens may differ: rounding depends on the number of rows."""
    requests = [replace(each, logprobs=(LogprobParams(),)) for each in mixed_requests()]
    for request, done in zip(requests, captured.generate(requests), strict=True):
        assert done.error is None
        [prompt] = request.prompts
        for choice in done.choices:
            if request.grammar:
                assert re.fullmatch(r"[0-9] the quick brown fox [a-z]{3,9}", choice.text)
            whole = (*prompt, *choice.token_ids)
            scoring = Request((whole,), SamplingParams(max_tokens=1), request_id="again")
            scoring = replace(scoring, logprobs=(LogprobParams(logprob_start_len=0),))
            [again] = eager.generate([scoring])
            scored, said = again.choices[0].prompt_logprobs, choice.logprobs
            assert scored is not None
            assert said is not None
            torch.testing.assert_close(
                torch.tensor(said.chosen), torch.tensor(scored.chosen[len(prompt) : len(whole)]),
                rtol=0, atol=0.2,  # rounding alone: 0.11 on an H100
            )  # fmt: skip


@needs_kernel
@pytest.mark.parametrize("window", [None, 1, 100])
@pytest.mark.parametrize("sizes", [[1, 1, 1], [1, 5, 300]])
def test_the_kernel_agrees_with_gathered_pages(sizes: list[int], window: int | None) -> None:
    torch.manual_seed(0)
    layer, shape = nn.Module(), LayerShape(2, 64, 64)
    like = torch.empty(0, dtype=torch.bfloat16, device=GPU)
    cache = TokenMajorCache({layer: shape}, 9, 256, like, lambda _shape: Way.FLASH)
    pages = cache.layers[layer]
    pages.key.normal_(), pages.value.normal_()
    first = [700, 255, 256]
    tables = np.array([[3, 1, 8], [5, 2, 0], [7, 4, 6]])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    lengths = np.array(first) + np.array(sizes)
    slots = np.zeros(starts[-1], dtype=np.int64)  # nothing is stored
    moved = to_device([slots, starts, lengths, tables], GPU)
    metadata = mix_metadata(cache, sizes, first, moved, 256)
    query = torch.randn(int(starts[-1]), 6, 64, dtype=torch.bfloat16, device=GPU)
    rule = AttentionRule(scale=64**-0.5, visible=Visible(window), softcap=None)
    expected = attend_gathered(query, pages, metadata, rule)
    torch.testing.assert_close(
        attend_paged(query, pages, metadata, rule), expected, rtol=2e-2, atol=2e-2
    )


def test_masks_and_tables_arrive_whole() -> None:
    draw = np.random.default_rng(0)
    for _ in range(20):  # more copies than buffers, none of which is waited for
        bits = draw.integers(-(2**31), 2**31, (64, 4096)).astype(np.int32)
        numbers = draw.integers(0, 2**40, 5000)
        forbidden, [moved] = forbidden_tokens(bits, GPU), to_device([numbers], GPU)
        assert (forbidden.cpu() == forbidden_tokens(bits, torch.device("cpu"))).all()
        np.testing.assert_array_equal(moved.cpu().numpy(), numbers)


def test_the_cache_leaves_memory_free(tiny_llama: Path) -> None:
    engine = make_engine(
        tiny_llama, dtype="bfloat16", kv_cache_bytes=None, gpu_memory_utilization=0.5
    )
    free, total = torch.cuda.mem_get_info(GPU)
    assert engine.stats().kv_blocks_total >= 6
    assert free >= 0.45 * total
    assert len(tokens(engine.generate(mixed_requests()))) == 11
