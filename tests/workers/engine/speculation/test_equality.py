"""What an engine says with speculation is what it says without, token by token."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from completions.contract.job_request import LogprobParams
from completions.contract.sampling import SamplingParams
from tests.workers.engine import greedy
from tests.workers.engine.backends.cpu.shapes import RECOGNISED, SHAPES
from tests.workers.engine.backends.cpu.test_decoder import save, skip_without
from tests.workers.engine.speculation.drafting import Guesses, draft_eagerly
from tests.workers.engine.tiny_models import save_model
from workers.engine.backends.base.budget import CacheBudget
from workers.engine.backends.cpu.layers.library import load_library
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.core.output import ChoiceDelta, Completion
from workers.engine.core.request import Request
from workers.engine.engine import Engine

BLOCK = 16
GRAMMARS = {
    "classes": "start: /[a-z]{2,9} ?[0-9]+/",
    "forced": 'start: /[a-c]/ " the quick brown fox " /[0-9]{2}/ "; the end" /[x-z]+/',
    "only forced": 'start: "the quick brown"',
    "json": '{"grammars": [{"json_schema": {"type": "object", "properties": {"name": {"type": '
    '"string", "maxLength": 9}, "kind": {"enum": ["quick", "quiet", "brown"]}, "ok": {"type": '
    '"boolean"}}, "required": ["name", "kind", "ok"], "x-guidance": '
    '{"whitespace_flexible": false}}}]}',
}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"seed": 3, "temperature": 0.8},
    "filtered": {"seed": 4, "top_k": 9, "top_p": 0.9, "min_p": 0.02},
    "choices": {"seed": 14, "n": 3, "temperature": 0.5},
    "endless": {"temperature": 0.0, "ignore_eos": True},
    "best of": {"seed": 15, "n": 1, "best_of": 2},
    "penalised": {
        "temperature": 0.0, "frequency_penalty": 0.5, "presence_penalty": 0.2,
        "repetition_penalty": 1.2,
    },
    "drawn and penalised": {"seed": 5, "frequency_penalty": 0.9, "logit_bias": {9: 4.0, 7: -5.0}},
    "dry": {"temperature": 0.0, "dry_multiplier": 0.8, "dry_allowed_length": 1},
    "dry and drawn": {"seed": 6, "dry_multiplier": 1.5, "dry_base": 2.0, "temperature": 0.6},
    "stopped": {"temperature": 0.0, "stop": ("e", "ab"), "min_tokens": 3},
    "ended": {"seed": 7, "stop_token_ids": tuple(range(5, 400, 12)), "min_tokens": 4},
    "held back": {"seed": 8, "stop_regex": ("[a-z ]{4}!", "[0-9]{3}", "q.{1,9}"), "min_tokens": 2},
    "scored": {"seed": 9, "logprobs": LogprobParams(2, -1, (5, 9))},
    "prompt scored": {"temperature": 0.0, "logprobs": LogprobParams(1, 0), "n": 2},
    "processed": {
        "seed": 16, "custom_logit_processor": "disallowed_tokens",
        "custom_params": {"token_ids": [5, 6, 7]},
    },
    **{name: {"temperature": 0.7, "seed": 10, "grammar": text} for name, text in GRAMMARS.items()},
    "scored under a grammar": {
        "seed": 11, "grammar": GRAMMARS["forced"], "logprobs": LogprobParams(1),
    },
    "late end of a grammar": {
        "seed": 12, "grammar": GRAMMARS["classes"], "min_tokens": 7, "ignore_eos": True,
    },
    "closed": {"seed": 17, "grammar": GRAMMARS["json"], "close": True},
    "closed and scored": {
        "seed": 18, "grammar": GRAMMARS["classes"], "close": True, "logprobs": LogprobParams(1),
    },
    "closed over forced text": {
        "seed": 19, "n": 2, "grammar": GRAMMARS["forced"], "close": True, "top_k": 20,
    },
    "everything": {
        "seed": 13, "n": 2, "grammar": GRAMMARS["json"], "stop_regex": ("fo[a-z] [0-9]", '"o'),
        "frequency_penalty": 0.3, "dry_multiplier": 0.4, "top_p": 0.95,
    },
}  # fmt: skip
PROCESSORS = {"disallowed_tokens": "workers.engine.sampling.custom_processors:DisallowedTokens"}
CONFIG = EngineConfig(
    device="cpu",
    num_threads=1,
    max_num_seqs=4,
    max_num_batched_tokens=40,
    block_size=BLOCK,
    max_model_len=96,
    logit_processors=PROCESSORS,
)
WITH_STATES = (
    "qwen3_5_text", "qwen3_next", "lfm2", "granitemoehybrid with states", "nemotron_h", "falcon_h1",
    "bamba",
)  # fmt: skip
Ask = tuple[str, int, int, int]
"""The kind of a request, the length and salt of its prompt, and its ``max_tokens``."""
PREEMPTED: list[Ask] = [("endless", 17, salt, 50) for salt in range(3)]
"""Fill a cache of 6 blocks with their prompts, and need 15 in the end, whatever tokens come."""
UNDISTURBED = 10
"""A seed with which a run of three aborts none and takes none over from another worker."""


def request(name: str, ask: Ask, draws: bool, **fields: Any) -> Request:
    kind, length, salt, max_tokens = ask
    params = {"max_tokens": max_tokens, **KINDS[kind]}
    if not draws:
        params["temperature"] = 0.0
    params["min_tokens"] = min(params.get("min_tokens", 0), max_tokens)
    grammar, scored = params.pop("grammar", None), params.pop("logprobs", None)
    fields["close"] = params.pop("close", False)
    return Request(
        (greedy.prompt(length, salt),),
        SamplingParams(**params),
        grammar,
        logprobs=(scored,) if scored else (),
        **fields,
        request_id=name,
    )


class Pair:
    """One model, in an engine that drafts whatever a test says, and in one that never drafts."""

    def __init__(self, path: Path, dtype: str) -> None:
        self._path, self._dtype = path, dtype
        # In float32, through modules, draws at a border depend on the step, with or without drafts.
        self.draws = dtype != "float32"
        config = replace(CONFIG, dtype=dtype, speculation=False, enable_prefix_caching=False)
        self._plain = build_engine(path, config)
        self.alone: Callable[[Ask], Completion] = cache(self._alone)

    def _alone(self, ask: Ask) -> Completion:
        [completion] = self._plain.generate([request("r", ask, self.draws)])
        return completion

    def drafting(self, num_blocks: int) -> Engine:
        """Return an engine whose cache has ``num_blocks``, and room for the copies of two states
        and for some saved ones."""
        budget = CacheBudget(num_blocks, num_saved_states=5, num_state_copies=2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(CacheBudget, "divide", lambda *given: budget)
            return build_engine(self._path, replace(CONFIG, dtype=self._dtype))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Pair]:
    @cache
    def pair(shape: str, dtype: str) -> Pair:
        folder = tmp_path_factory.mktemp("drafted")
        if dtype == "float32":
            return Pair(save_model(folder), dtype)
        return Pair(save(folder, shape, {**RECOGNISED, **SHAPES}[shape]), dtype)

    return pair


asks = st.tuples(
    st.sampled_from(sorted(KINDS)), st.integers(1, 45), st.integers(0, 2), st.integers(1, 50)
)


@pytest.mark.represented_by("llama-float32-4")
@pytest.mark.parametrize(
    ("shape", "dtype", "examples"),
    [
        ("llama", "float32", 4),
        ("llama", "bfloat16", 12),
        ("qwen3_5_text", "bfloat16", 12),
        *(
            pytest.param("llama", dtype, 200, marks=pytest.mark.long)
            for dtype in ("float32", "bfloat16", "int8", "int4")
        ),
        *(pytest.param(shape, "bfloat16", 100, marks=pytest.mark.long) for shape in WITH_STATES),
        pytest.param("qwen3_5_text", "int8", 100, marks=pytest.mark.long),
    ],
)
def test_drafts_change_nothing(
    pairs: Callable[[str, str], Pair],
    shape: str,
    dtype: str,
    examples: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if dtype != "float32":
        if load_library() is None:
            pytest.skip("needs the C kernels")
        skip_without(dtype)
    pair = pairs(shape, dtype)
    engines: dict[int, Engine] = {}

    @settings(
        max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck),
        database=None, derandomize=True,
    )  # fmt: skip
    @given(
        st.lists(asks, min_size=2, max_size=7),
        st.integers(0, 2**32),
        st.sampled_from([0.0, 0.1, 0.3, 1.0]),
        st.sampled_from([6, 8, 40]),
    )
    @example(PREEMPTED, UNDISTURBED, 0.1, 6)
    def check(given: list[Ask], seed: int, wrong: float, num_blocks: int) -> None:
        if num_blocks not in engines:
            engines[num_blocks] = pair.drafting(num_blocks)
        engine = engines[num_blocks]
        random = Random(seed)  # noqa: S311 - guesses, not secrets
        run = Run(engine, pair, given, Guesses(wrong, random), random)
        try:
            run.to_the_end()
        finally:
            run.abort_all()

    check()
    assert "no longer drafts" not in caplog.text
    stats = [engine.stats() for engine in engines.values()]
    assert sum(s.preemptions for s in stats) > 0
    # Rounding differs by processor, and with it what a model generates: runs here accept some 40
    # tokens an example.
    accepted = sum(s.accepted_tokens for s in stats)
    assert sum(s.drafted_tokens for s in stats) > accepted > 10 * examples


class Run:
    """Requests that run together. Some go on from what another worker published, some are
    aborted."""

    def __init__(
        self, engine: Engine, pair: Pair, given: list[Ask], guesses: Guesses, random: Random
    ) -> None:
        self._engine = engine
        self._expected = {str(i): pair.alone(ask) for i, ask in enumerate(given)}
        self._before: dict[str, Mapping[int, tuple[int, ...]]] = {}
        self._live: dict[str, Completion] = {}
        self._ended: dict[str, Completion] = {}
        self._aborted = random.choice([set(), set(), {"0"}, {"1"}])
        self._abort_after = random.randint(1, 9)
        draft_eagerly(engine, guesses)
        for i, ask in enumerate(given):
            name = str(i)
            expected = self._expected[name]
            guesses.learn(greedy.prompt(ask[1], ask[2]), expected.choices)
            asked = request(name, ask, pair.draws, organization=random.choice(["", "a"]))
            if random.random() < 0.4 and asked.sampling.best_of is None:
                self._before[name] = {
                    choice.index: tuple(choice.token_ids[: random.randrange(len(choice.token_ids))])
                    for choice in expected.choices
                    if choice.token_ids
                }
                asked = structs.replace(asked, published=self._before[name])
            self._live[name] = Completion.begin(asked)
            engine.submit(asked)

    def to_the_end(self) -> None:
        for turn in range(2000):
            if turn == self._abort_after:
                for name in self._aborted & self._live.keys():
                    self._engine.abort(name)
                    del self._live[name]
            if not self._live and not self._engine.live:
                break
            for output in self._engine.turn(wait=True):
                self._live[output.request_id].add(output)
                if output.finished:
                    self._ended[output.request_id] = self._live.pop(output.request_id)
        self._engine.turn(wait=False)
        assert not self._live
        assert not self._engine.scheduler.has_work
        assert self._engine.stats().kv_blocks_used == 0
        for name, completion in self._ended.items():
            self._check(name, completion)

    def abort_all(self) -> None:
        for name in self._live:
            self._engine.abort(name)

    def _check(self, name: str, completion: Completion) -> None:
        expected = self._expected[name]
        assert completion.error is None
        assert expected.error is None
        for choice, whole in zip(completion.choices, expected.choices, strict=True):
            before = self._before.get(name, {}).get(choice.index, ())
            assert [*before, *choice.token_ids] == whole.token_ids
            assert whole.text.endswith(choice.text)
            if not before:
                assert choice.text == whole.text
            assert choice.finish_reason == whole.finish_reason
            assert choice.matched_stop == whole.matched_stop
            assert choice.matched_stop_text == whole.matched_stop_text
            check_scores(choice, whole, len(before))
        assert completion.usage is not None
        assert expected.usage is not None
        assert completion.usage.completion_tokens == expected.usage.completion_tokens
        if name not in self._before:  # a resumed run counts them, even where logits are needed
            assert completion.usage.forced_tokens == expected.usage.forced_tokens


def check_scores(choice: ChoiceDelta, whole: ChoiceDelta, num_before: int) -> None:
    if whole.logprobs is None or choice.logprobs is None:
        assert choice.logprobs is None
        return
    rest = slice(num_before, None)
    for name in ("chosen", "top", "named"):
        found, expected = getattr(choice.logprobs, name), getattr(whole.logprobs, name)[rest]
        np.testing.assert_allclose(found, expected, atol=1e-4)
    assert choice.logprobs.offsets == whole.logprobs.offsets[rest]
