"""Output layers with more rows than the tokenizer has tokens, as Qwen, GLM, Gemma and Phi have."""

import json
from pathlib import Path

import pytest
import torch

from completions.contract.job_request import LogprobParams, Task
from completions.contract.sampling import SamplingParams
from tests.workers.engine import tiny_models
from tests.workers.engine.driving import choice, request, run
from tests.workers.engine.whole.test_closing import is_whole
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.core.request import Request
from workers.engine.engine import Engine

NUM_TOKENS = tiny_models.byte_level_tokenizer().get_vocab_size(with_added_tokens=True)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"const": "Ada"}},
    "required": ["name"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}
NAMES = {**SCHEMA, "properties": {"name": {"type": "string"}}}
CLOSED = 'start: /[a-z]+(,[a-z]+)*/ "."'
WILDCARD = "start: <[*]> <[*]> <[*]>"
FREE_TEXT = "start: /(.|\\n){3,9}/"


@pytest.fixture(scope="module", params=[1, 31, 128, 2784])
def padded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    options = {**tiny_models.LLAMA, "vocab_size": NUM_TOKENS + request.param}
    path = tiny_models.save_model(tmp_path_factory.mktemp("padded"), options)
    return _prefer_padding(path)


def _prefer_padding(path: Path) -> Engine:
    """Make an engine whose model prefers the extra ids to all tokens. A draw without a mask takes
    one of them at once."""
    engine = build_engine(
        path, EngineConfig(dtype="float32", max_num_seqs=8, block_size=4, kv_cache_bytes=2**22)
    )
    forward = engine.runner.forward

    def raised(batch: object) -> torch.Tensor:
        logits: torch.Tensor = forward(batch)  # type: ignore[arg-type]
        logits[:, NUM_TOKENS:] += 100
        return logits

    engine.runner.forward = raised  # type: ignore[method-assign, assignment]
    return engine


@pytest.fixture(scope="module", params=[("float32", "torch"), ("bfloat16", "c")])
def forward(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """A padded model in each of the CPU's forwards."""
    dtype, name = request.param
    options = {**tiny_models.LLAMA, "vocab_size": NUM_TOKENS + 31}
    path = tiny_models.save_model(tmp_path_factory.mktemp(name), options)
    config = EngineConfig(dtype=dtype, max_num_seqs=8, block_size=16, kv_cache_bytes=2**22)
    engine = build_engine(path, config)
    if name == "c" and engine.forward != "c":
        pytest.skip("this processor has no C forward")
    assert engine.forward == name
    return engine


@pytest.mark.represented_by("forward0-grammar1")
@pytest.mark.parametrize("grammar", [CLOSED, json.dumps({"grammars": [{"json_schema": NAMES}]})])
def test_choices_end_whole_at_any_limit_in_each_forward(forward: Engine, grammar: str) -> None:
    asked = [
        Request(
            ((5, 6, 7),),
            SamplingParams(max_tokens=limit, seed=limit, n=2),
            grammar,
            close=True,
            request_id=str(limit),
        )
        for limit in range(16, 40, 5)
    ]
    for completion in run(forward, *asked):
        for made in completion.choices:
            assert max(made.token_ids) < NUM_TOKENS
            assert is_whole(forward, grammar, made.token_ids), made.text


def test_what_was_generated_is_scored_alike_in_each_forward(forward: Engine) -> None:
    prompt, fields = (5, 6, 7, 8), {"logprobs": (LogprobParams(),), "request_id": "r"}
    made = choice(forward, Request((prompt,), SamplingParams(max_tokens=6, seed=2), **fields))  # type: ignore[arg-type]
    asked = Request(
        (prompt,),
        SamplingParams(max_tokens=0),
        task=Task.SCORE,
        continuations=((tuple(made.token_ids), (9,)),),
        **fields,  # type: ignore[arg-type]
    )
    [completion] = run(forward, asked)
    again = completion.choices[0]
    assert made.logprobs is not None
    assert again.logprobs is not None
    tolerance = 1e-4 if forward.forward == "torch" else 0.05
    assert again.logprobs.chosen == pytest.approx(made.logprobs.chosen, abs=tolerance)


@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("grammar", [WILDCARD, FREE_TEXT])
def test_a_grammar_allows_tokens_of_the_tokenizer_only(
    padded: Engine, grammar: str, temperature: float
) -> None:
    made = choice(padded, request(grammar=grammar, max_tokens=12, temperature=temperature, seed=3))
    assert made.token_ids
    assert max(made.token_ids) < NUM_TOKENS


def test_forced_text_is_made_whole(padded: Engine) -> None:
    grammar = json.dumps({"grammars": [{"json_schema": SCHEMA}]})
    made = choice(padded, request(grammar=grammar, max_tokens=64))
    assert json.loads(made.text) == {"name": "Ada"}


def test_constrained_rows_run_beside_free_ones(padded: Engine) -> None:
    free, forced = run(
        padded,
        request("free", max_tokens=4),
        request("forced", grammar='start: "the quick brown fox"', max_tokens=64),
    )
    assert free.error is None
    assert len(free.choices[0].token_ids) == 4
    assert forced.choices[0].text == "the quick brown fox"


def test_logprobs_of_a_masked_row_name_the_likeliest_raw_tokens(padded: Engine) -> None:
    asked = Request(
        ((5, 6, 7),),
        SamplingParams(temperature=0, max_tokens=3),
        WILDCARD,
        logprobs=(LogprobParams(top_logprobs_num=2),),
        request_id="r",
    )
    made = choice(padded, asked)
    assert made.logprobs is not None
    assert len(made.logprobs.chosen) == 3
