"""The engine where something is as large, as many or as sudden as it may be."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from completions.contract.job_request import LogprobParams
from completions.contract.sampling import SamplingParams
from tests.workers.engine import greedy
from tests.workers.engine.tiny_models import BLOCK_BYTES
from workers.engine.core.output import RequestOutput
from workers.engine.core.request import Request
from workers.engine.engine import Engine
from workers.engine.exceptions import ContextLengthExceeded, RequestFault
from workers.engine.text.finish import FinishReason

MakeEngine = Callable[..., Engine]


def request(name: str, prompt: tuple[int, ...], **params: Any) -> Request:
    return Request((prompt,), SamplingParams(**{"temperature": 0, **params}), request_id=name)


def test_128_choices_over_eight_slots(engine: Engine) -> None:
    params = {"temperature": 1.0, "seed": 5, "max_tokens": 5, "ignore_eos": True}
    [many] = engine.generate([request("many", greedy.prompt(21), n=128, **params)])
    assert many.error is None
    assert [len(choice.token_ids) for choice in many.choices] == [5] * 128
    [few] = engine.generate([request("few", greedy.prompt(21), n=3, **params)])
    assert many.choices[:3] == few.choices
    assert many.usage is not None
    assert (many.usage.prompt_tokens, many.usage.completion_tokens) == (21, 640)
    assert engine.stats().kv_blocks_used == 0


@pytest.mark.wide
def test_a_thousand_tiny_requests(engine: Engine, tiny_llama: Path) -> None:
    requests = [request(str(i), (5 + i % 100,), max_tokens=1) for i in range(1000)]
    completions = engine.generate(requests)
    expected = {i: greedy.generate(tiny_llama, (5 + i,), 1) for i in range(0, 100, 9)}
    for i, completion in enumerate(completions):
        assert completion.error is None
        assert len(completion.choices[0].token_ids) == 1
        if i % 100 in expected:
            assert completion.choices[0].token_ids == expected[i % 100]


class TestContext:
    """A context of 32 tokens, and a cache that holds exactly one."""

    @pytest.fixture
    def engine(self, make_engine: MakeEngine) -> Engine:
        return make_engine(max_model_len=32, kv_cache_bytes=8 * BLOCK_BYTES)

    def test_a_prompt_that_fills_it_is_refused(self, engine: Engine) -> None:
        with pytest.raises(ContextLengthExceeded, match="maximum context length is 32 tokens"):
            engine.submit(request("r", greedy.prompt(32), max_tokens=1))

    def test_a_prompt_that_fills_it_can_be_scored(self, engine: Engine) -> None:
        scores = (LogprobParams(logprob_start_len=0),)
        sampling = SamplingParams(max_tokens=0)
        wanted = Request((greedy.prompt(32),), sampling, logprobs=scores, request_id="r")
        [completion] = engine.generate([wanted])
        assert completion.error is None
        [choice] = completion.choices
        assert (choice.token_ids, choice.finish_reason) == ([], FinishReason.LENGTH)
        assert choice.prompt_logprobs is not None
        assert len(choice.prompt_logprobs.chosen) == 32

    def test_a_prompt_that_leaves_one_place_gets_one_token(
        self, engine: Engine, tiny_llama: Path
    ) -> None:
        [completion] = engine.generate([request("r", greedy.prompt(31), max_tokens=9)])
        [choice] = completion.choices
        assert choice.token_ids == greedy.generate(tiny_llama, greedy.prompt(31), 1)
        assert choice.finish_reason == FinishReason.LENGTH

    def test_two_that_need_all_of_it_run_after_each_other(
        self, engine: Engine, tiny_llama: Path
    ) -> None:
        prompts = [greedy.prompt(3, salt) for salt in range(2)]
        requests = [
            request(str(i), prompt, max_tokens=500, ignore_eos=True)
            for i, prompt in enumerate(prompts)
        ]
        for completion, prompt in zip(engine.generate(requests), prompts, strict=True):
            [choice] = completion.choices
            assert (len(choice.token_ids), choice.finish_reason) == (29, FinishReason.LENGTH)
            expected = greedy.generate(tiny_llama, prompt, 29)
            assert choice.token_ids[: len(expected)] == expected


class TestAborts:
    def test_during_prefill(self, make_engine: MakeEngine, tiny_llama: Path) -> None:
        engine, prompt = make_engine(), greedy.prompt(130)
        engine.submit(request("a", prompt, n=2))
        for _ in range(3):
            engine.turn()
        engine.abort("a")
        engine.receive(wait=False)
        stats = engine.stats()
        assert (stats.running, stats.waiting, stats.kv_blocks_used) == (0, 0, 0)
        [again] = engine.generate([request("a", prompt, max_tokens=8)])
        assert again.choices[0].token_ids == greedy.generate(tiny_llama, prompt, 8)

    def test_of_everything_at_once(self, make_engine: MakeEngine, tiny_llama: Path) -> None:
        engine = make_engine()
        outputs: dict[str, list[RequestOutput]] = {}
        some, last = threading.Event(), threading.Event()

        def collect(new: list[RequestOutput]) -> None:
            for output in new:
                outputs.setdefault(output.request_id, []).append(output)
                some.set()
                if output.request_id == "last" and output.finished:
                    last.set()

        engine.start(collect)
        names = [str(i) for i in range(50)]
        for i, name in enumerate(names):
            engine.submit(request(name, greedy.prompt(9, salt=i), max_tokens=300, n=2))
        assert some.wait(120)
        for name in names:
            engine.abort(name)
        engine.submit(request("last", greedy.prompt(9), max_tokens=6))
        assert last.wait(120)
        engine.stop()
        said = [t for output in outputs["last"] for d in output.deltas for t in d.token_ids]
        assert said == greedy.generate(tiny_llama, greedy.prompt(9), 6)
        assert not any(output.finished for name in names for output in outputs.get(name, []))
        assert engine.stats().kv_blocks_used == 0


def test_a_request_that_cannot_begin_fails_alone(
    make_engine: MakeEngine, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    good = request("good", greedy.prompt(9), max_tokens=5)
    bad = Request(good.prompts, good.sampling, published={0: (7,)}, request_id="bad")
    for each in (bad, good):
        engine.submit(each)
    monkeypatch.setattr(engine.live["bad"].sequences[0].choice, "replay", [].pop)
    ended: dict[str, RequestOutput] = {}
    said: list[int] = []
    while engine.live:
        for output in engine.turn():
            if output.request_id == "good":
                said += output.deltas[0].token_ids
            if output.finished:
                ended[output.request_id] = output
    assert isinstance(ended["bad"].error, RequestFault)
    assert ended["good"].error is None
    assert said == greedy.generate(tiny_llama, greedy.prompt(9), 5)
