"""The engine with a cache that is too small, shared or both: the tokens stay the same."""

import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from completions.contract.sampling import SamplingParams
from tests.workers.engine import greedy
from tests.workers.engine.adapters import save_adapter
from tests.workers.engine.driving import tokens
from tests.workers.engine.tiny_models import BLOCK_BYTES, LLAMA, save_model
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.core.output import Completion
from workers.engine.core.request import Request
from workers.engine.engine import Engine
from workers.engine.exceptions import EngineOverloaded, InvalidLogits, InvalidRequest

MakeEngine = Callable[..., Engine]


def request(request_id: str, prompt: tuple[int, ...], **params: Any) -> Request:
    outer = {k: params.pop(k) for k in ("organization", "cache_salt", "priority") if k in params}
    return Request(
        (prompt,),
        SamplingParams(**{"temperature": 0, **params}),
        **outer,
        request_id=request_id,
    )


def cached(completion: Completion) -> int:
    assert completion.usage is not None
    return completion.usage.cached_tokens


@pytest.fixture(scope="module")
def long_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = {**LLAMA, "max_position_embeddings": 2560}
    return save_model(tmp_path_factory.mktemp("long-llama"), options)


@pytest.fixture(scope="module")
def long_engine(long_llama: Path) -> Engine:
    config = EngineConfig(
        dtype="float32", max_num_seqs=8, max_num_batched_tokens=256, kv_cache_bytes=2**24
    )
    return build_engine(long_llama, config)


class TestGreedy:
    @pytest.mark.represented_by("256-False", "700-True")
    @pytest.mark.parametrize("cold", [True, False])
    @pytest.mark.parametrize("length", [1, 15, 16, 17, 255, 256, 257, 700, 2000])
    def test_long_prompts_computed_and_cached(
        self, long_llama: Path, long_engine: Engine, length: int, cold: bool
    ) -> None:
        prompt = greedy.prompt(length)
        call = request("r", prompt, max_tokens=12, cache_salt=str(cold) * cold)
        if not cold:
            long_engine.generate([request("before", prompt, max_tokens=1)])
        [completion] = long_engine.generate([call])
        assert tokens([completion]) == [greedy.generate(long_llama, prompt, 12)]
        if not cold:
            assert cached(completion) == (length - 1) // 16 * 16

    def test_a_mixed_batch_over_common_prefixes(
        self, long_llama: Path, long_engine: Engine
    ) -> None:
        common = greedy.prompt(300, salt=5)
        prompts = [common[: 37 * i + 1] + greedy.prompt(3 * i, salt=i) for i in range(9)] * 2
        requests = [request(str(i), p, max_tokens=10) for i, p in enumerate(prompts)]
        completions = long_engine.generate(requests)
        assert tokens(completions) == [greedy.generate(long_llama, p, 10) for p in prompts]
        assert sum(map(cached, completions)) > 1000

    def test_after_preemption(self, make_engine: MakeEngine, tiny_llama: Path) -> None:
        engine = make_engine(kv_cache_bytes=24 * BLOCK_BYTES)
        prompts = [greedy.prompt(5 + 3 * i, salt=i) for i in range(8)]
        requests = [request(str(i), p, max_tokens=40) for i, p in enumerate(prompts)]
        assert tokens(engine.generate(requests)) == [
            greedy.generate(tiny_llama, p, 40) for p in prompts
        ]
        stats = engine.stats()
        assert stats.kv_blocks_total == 24
        assert stats.preemptions > 5
        assert stats.kv_blocks_used == 0


class TestSampling:
    PARAMS: tuple[dict[str, Any], ...] = (
        {"seed": 1},
        {"seed": 2, "top_p": 0.9, "top_k": 40},
        {"seed": 3, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
        {"seed": 4, "stop": ("e",), "min_tokens": 20},
        {"seed": 5, "n": 3, "min_p": 0.02},
    )

    @pytest.mark.wide
    def test_preemption_changes_no_draw(self, make_engine: MakeEngine) -> None:
        params = [{"temperature": 1.0, "max_tokens": 40, **p} for p in self.PARAMS]
        requests = [request(str(i), greedy.prompt(9 + i), **p) for i, p in enumerate(params)]
        grammar = "start: /[a-z]{20,40} ?[0-9]+/"
        loose = SamplingParams(temperature=1.0, max_tokens=40, seed=6)
        requests.append(Request((greedy.prompt(6),), loose, grammar, request_id="grammar"))
        small, large = make_engine(kv_cache_bytes=20 * BLOCK_BYTES), make_engine()
        assert [c.choices for c in small.generate(requests)] == [
            c.choices for c in large.generate(requests)
        ]
        assert small.stats().preemptions > 0
        assert large.stats().preemptions == 0


class TestPrefixCache:
    def test_choices_of_a_prompt_share_it(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        call = request("r", greedy.prompt(41), n=4, temperature=1.0, seed=1, max_tokens=3)
        assert tokens(engine.generate([call])) == tokens(
            make_engine(enable_prefix_caching=False).generate([call])
        )
        stats = engine.stats()
        assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (4 * 41, 3 * 40)

    def test_usage_counts_the_prompts_once(self, make_engine: MakeEngine) -> None:
        engine = make_engine()
        prompts = (greedy.prompt(21), greedy.prompt(9, salt=1))
        sampling = SamplingParams(n=2, max_tokens=2)
        first, second = (
            engine.generate([Request(prompts, sampling, request_id=name)])[0] for name in ("a", "b")
        )
        assert (cached(first), cached(second)) == (0, 20 + 8)

    @pytest.mark.parametrize(
        "other", [{"organization": "them"}, {"organization": "us", "cache_salt": "x"}]
    )
    def test_nothing_is_shared_over_a_salt(self, make_engine: MakeEngine, other: Any) -> None:
        engine, prompt = make_engine(), greedy.prompt(30)
        engine.generate([request("a", prompt, organization="us")])
        [same] = engine.generate([request("b", prompt, organization="us")])
        [different] = engine.generate([request("c", prompt, **other)])
        assert (cached(same), cached(different)) == (28, 0)

    def test_an_adapter_does_not_find_the_blocks_of_the_plain_model(
        self, make_engine: MakeEngine, tiny_llama: Path, tmp_path: Path
    ) -> None:
        engine = make_engine(adapters={"a": save_adapter(tmp_path / "a", tiny_llama)})
        sampling = SamplingParams(max_tokens=2, temperature=0)
        found = []
        for number, adapter in enumerate((None, "a", None, "a")):
            call = Request(
                (greedy.prompt(30),),
                sampling,
                adapters=(adapter,),
                request_id=str(number),
            )
            found.append(cached(engine.generate([call])[0]))
        assert found == [0, 0, 28, 28]

    def test_what_a_choice_said_is_cached_too(self, make_engine: MakeEngine) -> None:
        engine, prompt = make_engine(), greedy.prompt(10)
        [said] = tokens(engine.generate([request("a", prompt, max_tokens=15, ignore_eos=True)]))
        [turn] = engine.generate([request("b", (*prompt, *said, 7), max_tokens=1)])
        assert cached(turn) == 24  # the last token of the 25 was never computed

    def test_a_full_cache_forgets_what_was_used_least_recently(
        self, make_engine: MakeEngine
    ) -> None:
        engine = make_engine(kv_cache_bytes=24 * BLOCK_BYTES)
        old, used, new = (greedy.prompt(31, salt=i) for i in range(3))
        for name, prompt in (("old", old), ("used", used), ("old again", old)):
            engine.generate([request(name, prompt, max_tokens=1)])
        for number in range(2):
            engine.generate([request(str(number), used, max_tokens=1)])
        engine.generate([request("new", new, max_tokens=34, ignore_eos=True)])
        assert cached(engine.generate([request("u", used, max_tokens=1)])[0]) == 28
        assert cached(engine.generate([request("o", old, max_tokens=1)])[0]) < 28

    @pytest.mark.wide
    def test_a_faulty_row_leaves_nothing_behind_and_spares_who_shares_with_it(
        self, make_engine: MakeEngine, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        engine, prompt = make_engine(), greedy.prompt(21)
        forward = engine.runner.forward

        def spoilt(batch: Any) -> torch.Tensor:
            logits: torch.Tensor = forward(batch)
            for row, seq in enumerate(batch.sampled):
                if (
                    engine.live.owner(seq).request.request_id == "bad"
                    and seq.num_output_tokens == 6
                ):
                    logits[row] = torch.nan
                    own = seq.block_ids[-1]  # what it shares is as good as its neighbour's tokens
                    for layer in engine.runner.cache.layers.values():
                        heads = layer.shape.num_kv_heads
                        layer.key.view(heads, layer.num_blocks, -1)[:, own] = torch.nan
            return logits

        monkeypatch.setattr(engine.runner, "forward", spoilt)
        good, bad = engine.generate([request(n, prompt, max_tokens=12) for n in ("good", "bad")])
        monkeypatch.undo()
        assert isinstance(bad.error, InvalidLogits)
        expected = greedy.generate(tiny_llama, prompt, 12)
        assert tokens([good]) == [expected]
        assert engine.pool.tainted
        calls = [request(str(i), greedy.prompt(60, salt=i), max_tokens=40) for i in range(8)]
        assert tokens(engine.generate(calls)) == [
            greedy.generate(tiny_llama, c.prompts[0], 40) for c in calls
        ]
        assert tokens(engine.generate([request("again", prompt, max_tokens=12)])) == [expected]


class TestQueue:
    def test_a_full_queue_refuses_until_there_is_room(self, make_engine: MakeEngine) -> None:
        engine = make_engine(max_num_seqs=1, max_waiting=2)
        for name in ("a", "b", "c"):
            engine.submit(request(name, (5, 6), max_tokens=2))
        with pytest.raises(EngineOverloaded):
            engine.submit(request("d", (5, 6)))
        engine.abort("b")
        engine.submit(request("d", (5, 6)))
        with pytest.raises(InvalidRequest, match="3 choices"):
            engine.submit(request("never", (5, 6), n=4))

    def test_a_list_of_requests_is_not_refused(self, make_engine: MakeEngine) -> None:
        engine = make_engine(max_num_seqs=1, max_waiting=2)
        calls = [request(str(i), (5, 6), max_tokens=1) for i in range(9)]
        assert len(tokens(engine.generate(calls))) == 9


@pytest.mark.wide
def test_memory_is_flat_over_many_requests(make_engine: MakeEngine) -> None:
    """Neither objects nor entries grow with the number of requests served."""
    engine = make_engine(kv_cache_bytes=40 * BLOCK_BYTES)

    def serve(number: int) -> None:
        calls = [
            request(
                f"{number}-{i}",
                greedy.prompt(2 + (number + i) % 30, salt=i),
                max_tokens=4,
                temperature=1.0,
                frequency_penalty=0.1,
                organization=f"{number}-{i % 3}",
                priority=i % 2,
            )
            for i in range(10)
        ]
        grammar = Request(
            ((5, 6),), SamplingParams(max_tokens=4), 'start: "a" | "b"', request_id="g"
        )
        assert len(tokens(engine.generate([*calls, grammar]))) == 11

    def size() -> tuple[int, int]:
        gc.collect()
        return len(gc.get_objects()), sum(map(len, _containers(engine)))

    for number in range(10):
        serve(number)
    objects, entries = size()
    for number in range(10, 40):
        serve(number)
    more_objects, more_entries = size()
    assert more_objects - objects < 165  # half of the requests served since
    assert more_entries <= entries + 100
    assert engine.stats().kv_blocks_used == 0


def _containers(engine: Engine) -> list[Any]:
    """The containers in the engine's own objects, private ones too: whatever grows is a leak."""
    owners = [engine, engine.scheduler, engine.scheduler._queue,
              engine.scheduler._pending, engine.pool,
              engine._prefix_cache, engine.sampler, engine.structured_output,
              *engine.sampler._processors.values()]  # fmt: skip
    return [x for o in owners for x in vars(o).values() if isinstance(x, dict | list | set)]


def test_stats_are_plain_numbers(engine: Engine) -> None:
    stats = engine.stats()
    names = ("preemptions", "prefix_cache_queries", "prefix_cache_hits", "kv_blocks_idle")
    json.dumps([getattr(stats, name) for name in names])
