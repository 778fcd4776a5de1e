"""The GPU's runner on the CPU: the same layouts, tables and paddings, without kernel and graphs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from completions.contract.job_request import LogprobParams
from completions.contract.sampling import SamplingParams
from tests.workers.engine import greedy
from tests.workers.engine.adapters import merge, save_adapter
from tests.workers.engine.checkpoints.test_loader import SUPPORTED, save
from tests.workers.engine.tiny_models import LLAMA, save_model
from workers.engine.backends.base.loaded_model import LoadedModel
from workers.engine.backends.cpu.backend import CpuBackend
from workers.engine.backends.cuda import attention, launches
from workers.engine.backends.cuda import runner as model_runner
from workers.engine.backends.cuda.backend import CudaBackend
from workers.engine.backends.cuda.graphs import DecodeGraphs, buckets
from workers.engine.backends.cuda.inputs import LENGTH, ROW, SLOT
from workers.engine.backends.cuda.kv_cache import TokenMajorCache, Way
from workers.engine.backends.cuda.runner import CudaRunner
from workers.engine.build import build_engine, compose_engine
from workers.engine.checkpoints.loader import PagedModel, wrap_model
from workers.engine.config import EngineConfig
from workers.engine.core.request import Request
from workers.engine.engine import Engine


def make_engine(path: Path, **settings: Any) -> Engine:
    """An engine on the CPU that believes to be on a GPU."""
    small = {"max_num_seqs": 6, "max_num_batched_tokens": 24, "block_size": 4}
    config = EngineConfig(
        **{"device": "cpu", "dtype": "float32", "kv_cache_bytes": 2**22, **small, **settings}
    )
    backend = CudaBackend(torch.device("cpu"))
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation=backend.attention)
    return compose_engine(
        wrap_model(model, AutoTokenizer.from_pretrained(path), backend, config), config
    )


class EagerGraphs(DecodeGraphs):
    """The static buffers without the capture."""

    def capture(self, decode: Any, ranks: Any = None) -> None:
        self.decode = decode
        self.replayed: list[int] = []

    def replay(self, table: Tensor, logits_rows: Tensor) -> Tensor:
        size, count = len(table), len(logits_rows)
        self.table[:size].copy_(table)
        self.logits_rows[:count].copy_(logits_rows)
        self.replayed.append(size)
        rows = self.logits_rows.clamp(max=size - 1)[:size]
        return self.decode(self.table[:size], rows)[:count]  # type: ignore[no-any-return]


def mixed_requests(count: int) -> list[Request]:
    params = SamplingParams(max_tokens=10, temperature=0)
    prompts = [greedy.prompt(1 + 7 * i, salt=i) for i in range(count)]
    return [Request((prompt,), params, request_id=str(i)) for i, prompt in enumerate(prompts)]


def assert_greedy(engine: Engine, path: Path, requests: list[Request]) -> None:
    for request, completion in zip(requests, engine.generate(requests), strict=True):
        expected = greedy.generate(path, request.prompts[0], 10)
        assert completion.choices[0].token_ids == expected


def test_greedy_equals_transformers_over_chunk_and_block_borders(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama)
    assert isinstance(engine.runner, CudaRunner)
    assert_greedy(engine, tiny_llama, mixed_requests(10))


def test_preempted_and_cached_sequences_say_the_same(tiny_llama: Path) -> None:
    engine = make_engine(tiny_llama, kv_cache_bytes=20 * 4 * 512)  # 20 blocks of 4 tokens
    assert_greedy(engine, tiny_llama, mixed_requests(9))
    assert engine.stats().preemptions > 0
    shared = greedy.prompt(30)
    params = SamplingParams(max_tokens=10, temperature=0)
    requests = [Request(((*shared, 9 + i),), params, request_id=str(i)) for i in range(3)]
    assert_greedy(engine, tiny_llama, requests)
    assert engine.stats().prefix_cache_hits > 0


@pytest.mark.represented_by("gemma2")
@pytest.mark.parametrize("model_type", ["gemma2", "mistral", "deepseek_v3"])
def test_windows_caps_and_unequal_heads(tmp_path: Path, model_type: str) -> None:
    path = save(tmp_path, model_type, SUPPORTED[model_type])
    assert_greedy(make_engine(path), path, mixed_requests(6))


def test_padded_tables_change_nothing(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_runner, "DecodeGraphs", EagerGraphs)
    engine = make_engine(tiny_llama)
    runner = engine.runner
    assert isinstance(runner, CudaRunner)
    runner.graphs = runner.capture()
    assert_greedy(engine, tiny_llama, mixed_requests(10))
    assert isinstance(runner.graphs, EagerGraphs)
    assert set(runner.graphs.replayed) >= {1, 8, 16, 24}
    assert set(runner.graphs.replayed) <= {1, 2, 4, 8, 16, 24}


@pytest.mark.parametrize(("most_tokens", "replayed"), [(251, 1), (253, 24)])
def test_a_prompt_whose_rows_would_read_much_is_prefilled(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, most_tokens: int, replayed: int
) -> None:
    """The rows of 22 tokens read 1 + 2 + ... + 22 = 253 tokens."""
    monkeypatch.setattr(model_runner, "DecodeGraphs", EagerGraphs)
    engine = make_engine(tiny_llama)
    runner = engine.runner
    assert isinstance(runner, CudaRunner)
    runner.graphs = runner.capture()
    loaded = runner._loaded
    most_read = most_tokens * loaded.block_bytes(1) // len(loaded.layer_shapes)
    monkeypatch.setattr(model_runner, "_MOST_READ", most_read)
    assert_greedy(engine, tiny_llama, mixed_requests(4)[3:])
    assert isinstance(runner.graphs, EagerGraphs)
    assert max(runner.graphs.replayed) == replayed


def test_a_prompt_with_more_logits_than_slots_is_prefilled(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_runner, "DecodeGraphs", EagerGraphs)
    [*_, request] = mixed_requests(4)
    request = replace(request, logprobs=(LogprobParams(logprob_start_len=0),))
    engine, plain = make_engine(tiny_llama), make_engine(tiny_llama)
    runner = engine.runner
    assert isinstance(runner, CudaRunner)
    runner.graphs = runner.capture()
    [[choice], [expected]] = (next(iter(e.generate([request]))).choices for e in (engine, plain))
    assert choice.token_ids == expected.token_ids
    assert choice.prompt_logprobs is not None
    assert expected.prompt_logprobs is not None
    assert choice.prompt_logprobs.chosen[1:] == pytest.approx(expected.prompt_logprobs.chosen[1:])
    assert isinstance(runner.graphs, EagerGraphs)
    assert max(runner.graphs.replayed) == 1


def test_forced_tokens_are_rows_of_a_graph(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_runner, "DecodeGraphs", EagerGraphs)
    grammar = r'start: /[0-9]/ "{ok}" /[0-9]/ "<!>" /[0-9]/ "(?)" /[0-9]/'
    params = SamplingParams(max_tokens=60, temperature=0)
    requests = [
        Request((greedy.prompt(9, salt=i),), params, grammar, request_id=str(i)) for i in range(2)
    ]
    plain = build_engine(tiny_llama, EngineConfig(dtype="float32", block_size=4))
    expected = [completion.choices[0].token_ids for completion in plain.generate(requests)]
    engine = make_engine(tiny_llama, max_num_seqs=16)
    runner = engine.runner
    assert isinstance(runner, CudaRunner)
    runner.graphs = runner.capture()
    actual = [completion.choices[0].token_ids for completion in engine.generate(requests)]
    assert actual == expected
    assert engine.stats().forced_tokens > 0
    assert isinstance(runner.graphs, EagerGraphs)
    assert max(runner.graphs.replayed) > 2, "more rows than sequences"


def test_a_graph_is_not_replayed_for_adapters(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_adapter(tmp_path / "adapter", tiny_llama)
    scaling = dict.fromkeys(("q_proj", "v_proj", "down_proj"), 2.0)
    merged = merge(tiny_llama, folder, scaling, tmp_path / "merged")
    monkeypatch.setattr(model_runner, "DecodeGraphs", EagerGraphs)
    engine = make_engine(tiny_llama, adapters={"a": folder})
    runner = engine.runner
    assert isinstance(runner, CudaRunner)
    runner.graphs = runner.capture()
    params = SamplingParams(max_tokens=10, temperature=0)
    prompts = [greedy.prompt(9), greedy.prompt(20)]
    adapted, plain = engine.generate(
        [
            Request((prompts[0],), params, adapters=("a",), request_id="adapted"),
            Request((prompts[1],), params, request_id="plain"),
        ]
    )
    assert adapted.choices[0].token_ids == greedy.generate(merged, prompts[0], 10)
    assert plain.choices[0].token_ids == greedy.generate(tiny_llama, prompts[1], 10)


def test_a_model_that_cannot_be_captured_decodes_eagerly(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Uncapturable(DecodeGraphs):
        def capture(self, decode: Any, ranks: Any = None) -> None:
            raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(model_runner, "DecodeGraphs", Uncapturable)
    engine = make_engine(tiny_llama)
    assert isinstance(engine.runner, CudaRunner)
    assert engine.runner.capture() is None
    assert "without CUDA graphs" in caplog.text


def test_without_room_for_graphs_of_prompts_there_are_those_of_single_tokens(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Small(EagerGraphs):
        def capture(self, decode: Any, ranks: Any = None) -> None:
            if len(self.table) > 6:
                raise torch.OutOfMemoryError("CUDA out of memory")
            super().capture(decode, ranks)

    monkeypatch.setattr(model_runner, "DecodeGraphs", Small)
    engine = make_engine(tiny_llama)
    assert isinstance(engine.runner, CudaRunner)
    engine.runner.graphs = engine.runner.capture()
    assert engine.runner.graphs is not None
    assert engine.runner.graphs.num_rows(6) == 6
    assert engine.runner.graphs.num_rows(7) is None
    assert_greedy(engine, tiny_llama, mixed_requests(4))


def test_no_rank_captures_what_another_rank_does_not(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Captures begin with steps, in which ranks wait for one another."""
    monkeypatch.setattr(model_runner, "DecodeGraphs", EagerGraphs)
    runner = make_engine(tiny_llama).runner
    assert isinstance(runner, CudaRunner)
    given: list[int] = []

    def agree_on(_loaded: LoadedModel, number: int) -> int:
        given.append(number)
        return min(given)

    monkeypatch.setattr(LoadedModel, "agree_on", agree_on)
    monkeypatch.setattr(TokenMajorCache, "is_bounded", True)
    assert runner.capture_with_others() is not None
    monkeypatch.setattr(TokenMajorCache, "is_bounded", False)
    assert runner.capture_with_others() is None
    monkeypatch.setattr(TokenMajorCache, "is_bounded", True)
    monkeypatch.setattr(runner, "capture", lambda: pytest.fail("another rank would wait"))
    assert runner.capture_with_others() is None
    assert given == [1, 0, 1], "each rank has to give a number"


def test_a_kernel_that_spoils_a_model_gives_way_to_a_simpler_one(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def with_kernel(self: CudaBackend, _device: torch.device) -> None:
        self._device = torch.device("cpu")
        self.ways = [Way.SPLIT, Way.GATHERED]

    monkeypatch.setattr(CudaBackend, "__init__", with_kernel)
    monkeypatch.setattr(CudaBackend, "make_for_cpu", lambda _self: CpuBackend())
    monkeypatch.setattr(attention, "takes", lambda *_: True)
    monkeypatch.setattr(launches, "split", lambda query, *_: torch.zeros_like(query))
    engine = make_engine(tiny_llama)
    assert engine.forward == "cuda"
    assert isinstance(engine.runner, CudaRunner)
    assert {layer.way for layer in engine.runner.cache.layers.values()} == {Way.GATHERED}
    assert "falls back to a simpler kernel" in caplog.text
    assert_greedy(engine, tiny_llama, mixed_requests(3))


def test_a_step_that_runs_out_of_memory_runs_once_more(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    emptied: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    engine = make_engine(tiny_llama)
    run = PagedModel.__call__
    failures = iter([True, False, False, True])

    def scarce(*args: Any) -> Tensor:
        if next(failures, False):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(*args)

    monkeypatch.setattr(PagedModel, "__call__", scarce)
    assert_greedy(engine, tiny_llama, mixed_requests(3))
    assert len(emptied) == 2
    assert "runs again after memory was returned" in caplog.text


def test_a_step_that_does_not_fit_is_done_in_smaller_ones(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    engine = make_engine(tiny_llama, max_num_batched_tokens=64)
    run = PagedModel.__call__
    sizes: list[int] = []

    def scarce(model: Any, ids: Tensor, *args: Any) -> Tensor:
        if len(ids) > 40:
            raise torch.OutOfMemoryError("CUDA out of memory")
        sizes.append(len(ids))
        return run(model, ids, *args)

    monkeypatch.setattr(PagedModel, "__call__", scarce)
    assert_greedy(engine, tiny_llama, mixed_requests(6))
    assert max(sizes) == 32
    assert "later ones have 32 tokens" in caplog.text


def test_a_step_that_did_not_fit_leaves_nothing_in_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
    path = save_model(tmp_path, options)
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    ask = Request((greedy.prompt(30),), params, return_routed_experts=True, request_id="r")
    engine = make_engine(path, max_num_batched_tokens=64)
    [expected] = engine.generate([ask])
    assert isinstance(engine.runner, CudaRunner)
    model: Any = engine.runner._model.model
    layer = model.model.layers[1]
    forward = layer.forward
    failures = iter([True])

    def scarce(*args: Any, **kwargs: Any) -> Any:
        if next(failures, False):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(*args, **kwargs)

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(layer, "forward", scarce)
    [found] = engine.generate([ask])
    assert (there := expected.choices[0].routed_experts) is not None
    assert (here := found.choices[0].routed_experts) is not None
    assert here.tolist() == there.tolist()


def test_steps_that_cannot_be_smaller_end_the_engine(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    engine = make_engine(tiny_llama, max_num_batched_tokens=64)

    def full(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(PagedModel, "__call__", full)
    with pytest.raises(torch.OutOfMemoryError):
        engine.generate(mixed_requests(2))


def test_a_cache_too_small_for_a_block_is_refused(tiny_llama: Path) -> None:
    with pytest.raises(ValueError, match="raise kv_cache_bytes"):
        make_engine(tiny_llama, kv_cache_bytes=100)


def test_the_profile_computes_a_whole_budget_even_past_the_context(
    tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make_engine(tiny_llama, max_model_len=40).runner
    assert isinstance(runner, CudaRunner)
    seen: list[tuple[int, int, int]] = []
    run = PagedModel.__call__

    def watched(
        model: Any, ids: Tensor, positions: Tensor, metadata: Any, rows: Tensor, states: Any
    ) -> Tensor:
        seen.append((len(ids), int(positions.max()), len(rows)))
        return run(model, ids, positions, metadata, rows, states)

    monkeypatch.setattr(PagedModel, "__call__", watched)
    runner.profile(max_tokens=100, max_rows=6)
    assert seen == [(100, 39, 100)]


@pytest.mark.parametrize("max_rows", [1, 2, 3, 7, 8, 9, 64, 100, 256, 300, 1024])
def test_buckets_bound_the_padding(max_rows: int) -> None:
    graphs = DecodeGraphs(max_rows, max_rows, torch.device("cpu"))
    for count in range(1, max_rows + 1):
        padded = graphs.num_rows(count)
        assert padded is not None
        assert count <= padded <= max_rows
        assert padded - count <= (7 if count <= 256 else 63)
        assert padded < 2 * count or padded == 1
    assert graphs.num_rows(max_rows + 1) is None
    assert buckets(max_rows)[-1] == max_rows


def test_unused_rows_of_a_graph_point_at_the_null_block() -> None:
    table = DecodeGraphs(9, 4, torch.device("cpu")).table
    assert (table[:, LENGTH] == 1).all()
    assert not table[:, SLOT].any()
    assert (table[:, ROW] == 4).all()
