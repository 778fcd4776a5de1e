"""Choices that are to be closed: whole texts of their grammar at any length limit, and the same
tokens through failover, drafts and other sequences of a step."""

import json
from collections.abc import Sequence as Rows
from random import Random

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher
from msgspec.structs import replace

from completions.contract.grammar_ends import find_way
from completions.contract.job_request import LogprobParams
from completions.contract.llguidance_limits import ENGINE_LIMITS
from completions.contract.sampling import SamplingParams
from tests.workers.engine.driving import MakeEngine, advance
from tests.workers.engine.speculation.drafting import Guesses, draft_eagerly
from workers.engine.core.output import ChoiceDelta, LimitEnding
from workers.engine.core.request import Request
from workers.engine.engine import Engine
from workers.engine.text.finish import FinishReason

FEW = settings.default.max_examples // 3
"""Examples of whole runs, which take half a second."""


def schema(**keywords: object) -> str:
    options = {"x-guidance": {"whitespace_flexible": False}}
    return json.dumps({"grammars": [{"json_schema": {**keywords, **options}}]})


TEXT = {"type": "string"}
GRAMMARS = {
    "regex": "start: /[a-c]{4,}-[0-9]{3}/",
    "open end": "start: /[a-z]+(,[a-z]+)*/",
    "long way": 'start: "a" | "b" /[x-z]{30,40}/',
    "object": schema(
        type="object",
        properties={"name": TEXT, "tags": {"type": "array", "items": TEXT}},
        required=["name", "tags"],
        additionalProperties=False,
    ),
    "any object": schema(type="object"),
    "nested": schema(
        type="array",
        minItems=2,
        items={
            "type": "object",
            "properties": {"kind": {"enum": ["circle", "square"]}, "size": {"type": "number"}},
            "required": ["kind", "size"],
        },
    ),
    "reasoning": 'start: T s0\nT: (/(?s:.*)/ & ~(/(?s:.*)/ ("</t>") /(?s:.*)/)) "</t>"\n'
    's0: %json {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}',
}
GRAMMARS["reasoning"] = json.dumps({"grammars": [{"lark_grammar": GRAMMARS["reasoning"]}]})


def ask(grammar: str, limit: int, **fields: object) -> Request:
    outer = {name: fields.pop(name) for name in ("logprobs", "published") if name in fields}
    params = {"temperature": 1.0, "max_tokens": limit, **fields}
    return Request(
        ((5, 6, 7),), SamplingParams(**params), grammar, close=True, request_id="r", **outer
    )  # type: ignore[arg-type]


def make_matcher(engine: Engine, grammar: str) -> LLMatcher:
    tokenizer = engine.structured_output.tokenizer
    return LLMatcher(tokenizer, grammar, log_level=0, limits=ENGINE_LIMITS)


def is_whole(engine: Engine, grammar: str, token_ids: Rows[int]) -> bool:
    matcher = make_matcher(engine, grammar)
    text = [token_id for token_id in token_ids if token_id not in engine.eos_token_ids]
    return matcher.try_consume_tokens(text) == len(text) and matcher.is_accepting()


def fits(engine: Engine, grammar: str, limit: int) -> bool:
    """Whether a whole text of the grammar has at most so many tokens."""
    tokens = engine.structured_output.end_tokens
    matcher = make_matcher(engine, grammar)
    way = find_way(matcher, tokens, tokens.read_texts(grammar), 2000, limit)
    return way is not None and len(way) <= limit


def check(engine: Engine, grammar: str, limit: int, choice: ChoiceDelta) -> None:
    assert len(choice.token_ids) <= limit
    assert is_whole(engine, grammar, choice.token_ids), choice.text
    if choice.finish_reason is FinishReason.LENGTH:
        assert choice.limit_ending is not None
        assert choice.limit_ending.is_whole
        assert (choice.limit_ending.closed_at or 0) <= len(choice.token_ids)
    else:
        assert choice.limit_ending is None


@pytest.mark.wide
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(sorted(GRAMMARS)),
    st.integers(1, 45),
    st.integers(0, 2**31),
    st.sampled_from([{}, {"top_k": 3}, {"temperature": 0.0}, {"ignore_eos": True}, {"n": 2}]),
    st.booleans(),
)
def test_every_choice_is_whole(
    engine: Engine, name: str, limit: int, seed: int, params: dict[str, object], scored: bool
) -> None:
    grammar = GRAMMARS[name]
    assume(fits(engine, grammar, limit))
    scores = {"logprobs": (LogprobParams(),)} if scored else {}
    [completion] = engine.generate([ask(grammar, limit, seed=seed, **params, **scores)])
    assert completion.error is None
    for choice in completion.choices:
        check(engine, grammar, limit, choice)


@pytest.mark.wide
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=FEW)
@given(
    st.sampled_from(sorted(GRAMMARS)),
    st.integers(16, 36),
    st.integers(0, 2**31),
    st.integers(0, 36),
)
def test_a_run_that_resumes_closes_alike(
    engine: Engine, name: str, limit: int, seed: int, cut: int
) -> None:
    request = ask(GRAMMARS[name], limit, seed=seed)
    parts: list[ChoiceDelta] = []
    engine.submit(request)
    while engine.live:
        for output in advance(engine):
            parts += output.deltas
    published = [delta for delta in parts if delta.token_ids][:cut]
    ids = tuple(token_id for delta in published for token_id in delta.token_ids)
    [completion] = engine.generate([replace(request, published={0: ids})])
    [rest] = completion.choices
    assert [*ids, *rest.token_ids] == [token for delta in parts for token in delta.token_ids]
    assert rest.finish_reason == parts[-1].finish_reason
    assert rest.limit_ending == parts[-1].limit_ending


def test_jump_forward_makes_no_difference_to_wholeness(make_engine: MakeEngine) -> None:
    for jumps in (False, True):
        engine = make_engine(jump_forward=jumps)
        for limit in range(20, 40, 7):
            [completion] = engine.generate([ask(GRAMMARS["nested"], limit + 60, seed=limit)])
            check(engine, GRAMMARS["nested"], limit + 60, completion.choices[0])


@pytest.mark.wide
@pytest.mark.parametrize("jumps", [True, False], ids=["jumps", "no jumps"])
def test_a_choice_whose_tokens_are_drafted_closes_alike(
    make_engine: MakeEngine, jumps: bool
) -> None:
    """Greedy: in float32, draws at a border depend on the step."""
    plain = make_engine(jump_forward=jumps, speculation=False)
    drafting = make_engine(jump_forward=jumps, enable_prefix_caching=False)
    guesses = Guesses(0.2, Random(1))  # noqa: S311 - guesses, not secrets
    draft_eagerly(drafting, guesses)
    closed = 0
    for name, limit in (("nested", 70), ("nested", 90), ("object", 30), ("regex", 12)):
        grammar = GRAMMARS[name]
        asked = ask(grammar, limit, temperature=0.0, logit_bias={68: 3.0})
        [alone] = plain.generate([asked])
        check(plain, grammar, limit, alone.choices[0])
        guesses.learn(asked.prompts[0], alone.choices)
        [drafted] = drafting.generate([asked])
        assert drafted.choices == alone.choices
        ending = alone.choices[0].limit_ending
        closed += ending is not None and ending.closed_at is not None
    stats = drafting.stats()
    assert stats.drafted_tokens > stats.accepted_tokens > 0
    assert plain.stats().forced_tokens > 0
    assert closed > 0


def test_a_replaced_token_counts_as_forced(engine: Engine) -> None:
    """The model wants letters for ever; what ends the text is not its choice."""
    request = ask('start: /[a-z]+/ "." ', 12, seed=1, logit_bias={68: 50.0})
    [completion] = engine.generate([request])
    [choice] = completion.choices
    assert choice.finish_reason is FinishReason.LENGTH
    assert choice.text.endswith(".")
    assert choice.forced[-1] == len(choice.token_ids) - 1
    assert choice.limit_ending is not None
    assert choice.limit_ending.closed_at is not None
    assert choice.limit_ending.closed_at >= 9


def test_a_text_that_may_end_anywhere_is_cut_and_not_closed(engine: Engine) -> None:
    request = ask("start: /(?s:.*)/", 10, seed=1, ignore_eos=True)
    [completion] = engine.generate([request])
    [choice] = completion.choices
    assert (choice.finish_reason, len(choice.token_ids)) == (FinishReason.LENGTH, 10)
    assert choice.limit_ending == LimitEnding(is_whole=True, closed_at=None)


def test_no_way_is_taken_that_is_longer_than_the_rest(engine: Engine) -> None:
    """A choice whose least length exceeds the limit ends as it would without, and says so."""
    [completion] = engine.generate([ask("start: /[a-z]{70}/", 5, seed=1)])
    [choice] = completion.choices
    assert choice.finish_reason is FinishReason.LENGTH
    assert choice.limit_ending is not None
    assert choice.limit_ending == LimitEnding(is_whole=False, closed_at=None)


def test_without_close_nothing_changes(engine: Engine) -> None:
    request = ask(GRAMMARS["object"], 20, seed=4)
    [completion] = engine.generate([replace(request, close=False)])
    assert completion.choices[0].limit_ending is None
