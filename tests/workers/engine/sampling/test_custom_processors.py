"""Registered logits processors: their place, their state, their faults."""

from asyncio import CancelledError
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Rows
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from torch import Tensor

from completions.contract.sampling import SamplingParams
from tests.workers.engine import greedy
from tests.workers.engine.tiny_models import EOS, TOOL
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.core.output import Completion
from workers.engine.core.request import Request
from workers.engine.engine import Engine
from workers.engine.exceptions import InvalidLogits, InvalidRequest, ProcessorError
from workers.engine.sampling.custom_processors import ChoiceContext, load_processors

MakeEngine = Callable[..., Engine]

PROMPT = greedy.prompt(12)
BUILT_IN = {
    "disallowed_tokens": "workers.engine.sampling.custom_processors:DisallowedTokens",
    "thinking_budget": "workers.engine.sampling.custom_processors:ThinkingBudget",
}
HERE = "tests.workers.engine.sampling.test_custom_processors"


class Broken:
    """Fails after ``after`` tokens."""

    def __init__(self, params: Mapping[str, Any], context: ChoiceContext) -> None:
        self._last = context.prompt_len + params["after"]

    def __call__(self, token_ids: Rows[int], logits: Tensor) -> None:
        logits += 1
        if len(token_ids) == self._last:
            raise RuntimeError("no more")


class Poison:
    def __init__(self, params: Mapping[str, Any], context: ChoiceContext) -> None:
        pass

    def __call__(self, token_ids: Rows[int], logits: Tensor) -> None:
        logits.fill_(torch.nan)


class Unruly:
    """Does what ``act`` names, once it is asked for a token."""

    def __init__(self, params: Mapping[str, Any], context: ChoiceContext) -> None:
        self._act = getattr(self, params["act"])

    def __call__(self, token_ids: Rows[int], logits: Tensor) -> Any:
        return self._act(token_ids, logits)

    def recurse(self, token_ids: Rows[int], logits: Tensor) -> None:
        self.recurse(token_ids, logits)

    def starve(self, token_ids: Rows[int], logits: Tensor) -> None:
        raise MemoryError

    def leave(self, token_ids: Rows[int], logits: Tensor) -> None:
        raise SystemExit(3)

    def give_up(self, token_ids: Rows[int], logits: Tensor) -> None:
        raise CancelledError

    def answer(self, token_ids: Rows[int], logits: Tensor) -> Tensor:
        return logits + 1

    def view(self, token_ids: Rows[int], logits: Tensor) -> Tensor:
        return logits[:]

    def give_back(self, token_ids: Rows[int], logits: Tensor) -> Tensor:
        return logits.neg_()

    def negate(self, token_ids: Rows[int], logits: Tensor) -> None:
        torch.neg(logits, out=logits)

    def reshape(self, token_ids: Rows[int], logits: Tensor) -> None:
        logits.resize_(3)

    def reach_out(self, token_ids: Rows[int], logits: Tensor) -> None:
        if logits._base is not None:
            logits._base.fill_(0)
        raise ValueError

    def lengthen(self, token_ids: list[int], logits: Tensor) -> None:
        token_ids.append(7)


def misbuild(params: Mapping[str, Any], context: ChoiceContext) -> Any:
    """A factory that fails as ``fault`` names."""
    faults = {"key": KeyError("x"), "memory": MemoryError(), "exit": SystemExit(3)}
    if params["fault"] in faults:
        raise faults[params["fault"]]
    return params["fault"]


@pytest.fixture(scope="module")
def custom(tiny_llama: Any) -> Engine:
    config = EngineConfig(
        dtype="float32", max_num_seqs=8, max_num_batched_tokens=24, block_size=4,
        kv_cache_bytes=2**22,
        logit_processors={
            **BUILT_IN, "broken": f"{HERE}:Broken", "poison": f"{HERE}:Poison",
            "unruly": f"{HERE}:Unruly", "misbuilt": f"{HERE}:misbuild",
        },
    )  # fmt: skip
    return build_engine(tiny_llama, config)


def ask(name: str | None, request_id: str = "r", /, **fields: Any) -> Request:
    outer = {k: fields.pop(k) for k in ("grammar", "published") if k in fields}
    sampling = {k: fields.pop(k) for k in ("max_tokens", "logit_bias", "n") if k in fields}
    params = SamplingParams(
        temperature=0, ignore_eos=True, custom_logit_processor=name, custom_params=fields,
        **{"max_tokens": 8, **sampling},
    )  # fmt: skip
    return Request((PROMPT,), params, **outer, request_id=request_id)


def said(engine: Engine, *requests: Request) -> list[Completion]:
    return engine.generate(requests)


class TestDisallowedTokens:
    def test_they_never_come_whatever_their_bias(self, custom: Engine) -> None:
        [free] = said(custom, ask(None))
        banned = free.choices[0].token_ids
        bias = {banned[0]: 100.0}
        [call] = said(custom, ask("disallowed_tokens", token_ids=banned, logit_bias=bias))
        assert not set(call.choices[0].token_ids) & set(banned)
        assert len(call.choices[0].token_ids) == 8

    @pytest.mark.parametrize(
        "params", [{}, {"token_ids": [400]}, {"token_ids": [True]}, {"token_ids": 3},
                   {"token_ids": [1], "more": 1}]
    )  # fmt: skip
    def test_bad_parameters(self, custom: Engine, params: dict[str, Any]) -> None:
        with pytest.raises(InvalidRequest, match="custom_params: "):
            said(custom, ask("disallowed_tokens", **params))

    def test_all_of_them_are_the_clients_mistake(self, custom: Engine) -> None:
        everything = list(range(custom.vocab_size))
        [alone] = said(custom, ask("disallowed_tokens", token_ids=everything))
        assert isinstance(alone.error, InvalidRequest)
        assert "'disallowed_tokens' leaves no possible token" in str(alone.error)
        others = [token for token in everything if token not in custom.eos_token_ids]
        params = SamplingParams(
            temperature=0, min_tokens=2, custom_logit_processor="disallowed_tokens",
            custom_params={"token_ids": others},
        )  # fmt: skip
        [short] = said(custom, Request((PROMPT,), params, request_id="m"))
        assert "'disallowed_tokens' and min_tokens leave no" in str(short.error)

    def test_a_grammar_that_needs_one_is_the_clients_mistake(
        self, custom: Engine, tokenizer: Tokenizer
    ) -> None:
        grammar = 'start: "x" /[a-z]+/'
        token = tokenizer.token_to_id("x")
        asked = ask("disallowed_tokens", token_ids=[token], grammar=grammar)
        neighbour = ask(None, "n", grammar=grammar)
        [alone] = said(custom, neighbour)
        failed, unharmed = said(custom, asked, neighbour)
        assert isinstance(failed.error, InvalidRequest)
        reason = "'disallowed_tokens' and the constraint leave no possible token"
        assert str(failed.error) == f"custom_logit_processor: {reason}"
        assert unharmed.choices == alone.choices


class TestThinkingBudget:
    @pytest.mark.parametrize("budget", [0, 1, 3])
    def test_thinking_ends_after_so_many_tokens(
        self, custom: Engine, tokenizer: Tokenizer, budget: int
    ) -> None:
        start, end = (tokenizer.token_to_id(t) for t in (TOOL, EOS))
        fields = {"start_token": TOOL, "end_token": EOS, "thinking_budget": budget}
        params = SamplingParams(
            temperature=0, ignore_eos=True, max_tokens=8, logit_bias={end: -100.0},
            custom_logit_processor="thinking_budget", custom_params=fields,
        )  # fmt: skip
        inside = (*PROMPT, start, 7)
        [call, outside] = said(
            custom,
            Request((inside,), params, request_id="in"),
            Request((PROMPT,), params, request_id="out"),
        )
        assert call.choices[0].token_ids.index(end) == max(0, budget - 1)
        assert call.choices[0].token_ids.count(end) == 1
        assert end not in outside.choices[0].token_ids

    @pytest.mark.parametrize(
        "params", [{}, {"thinking_budget": -1}, {"thinking_budget": True}, {"thinking_budget": 3},
                   {"thinking_budget": 3, "start_token": TOOL, "end_token": 5}]
    )  # fmt: skip
    def test_bad_parameters(self, custom: Engine, params: dict[str, Any]) -> None:
        with pytest.raises(InvalidRequest, match="custom_params: "):
            said(custom, ask("thinking_budget", **params))

    def test_a_resumed_choice_goes_on_alike(self, custom: Engine, tokenizer: Tokenizer) -> None:
        fields = {"start_token": TOOL, "end_token": EOS, "thinking_budget": 4}
        start = tokenizer.token_to_id(TOOL)
        asked = ask("thinking_budget", **fields, logit_bias={start: 50.0})
        [whole] = said(custom, asked)
        tokens = tuple(whole.choices[0].token_ids)
        cut = ask("thinking_budget", **fields, logit_bias={start: 50.0}, published={0: tokens[:3]})
        [rest] = said(custom, cut)
        assert (*tokens[:3], *rest.choices[0].token_ids) == tokens


class TestFaults:
    @pytest.mark.parametrize(
        ("asked", "error"),
        [(ask("broken", after=3), ProcessorError), (ask("poison"), InvalidLogits)],
    )
    def test_one_that_fails_ends_its_request_alone(
        self, custom: Engine, asked: Request, error: type[Exception]
    ) -> None:
        neighbours = [ask(None, str(i)) for i in range(3)]
        alone = said(custom, *neighbours)
        [first, *others] = said(custom, asked, *neighbours)
        assert type(first.error) is error
        assert [c.choices for c in others] == [c.choices for c in alone]

    @pytest.mark.parametrize(
        "act", ["recurse", "starve", "leave", "give_up", "answer", "view", "reshape", "reach_out"]
    )
    def test_whatever_one_does_ends_its_request_alone(self, custom: Engine, act: str) -> None:
        neighbour = ask(None, "n")
        alone = said(custom, neighbour)
        first, *others = said(custom, ask("unruly", act=act), neighbour)
        assert type(first.error) is ProcessorError
        assert "'unruly'" in str(first.error)
        assert [c.choices for c in others] == [c.choices for c in alone]

    def test_one_may_return_the_tensor_that_it_has_changed(self, custom: Engine) -> None:
        [given, kept] = said(
            custom, ask("unruly", act="give_back"), ask("unruly", "k", act="negate")
        )
        assert given.error is None
        assert given.choices == kept.choices

    def test_the_tokens_that_one_gets_are_not_the_choices(self, custom: Engine) -> None:
        [plain, changed] = said(custom, ask(None), ask("unruly", "u", act="lengthen"))
        assert changed.choices == plain.choices

    @pytest.mark.parametrize("fault", ["key", "memory", "exit", "no processor"])
    def test_one_that_cannot_be_made_ends_its_request_alone(
        self, custom: Engine, fault: str
    ) -> None:
        with pytest.raises(ProcessorError, match="'misbuilt'"):
            custom.submit(ask("misbuilt", fault=fault))
        assert not custom.live

    def test_each_choice_has_a_processor_of_its_own(self, custom: Engine) -> None:
        [call] = said(custom, ask("broken", after=99, n=3))
        assert call.error is None
        assert len({tuple(c.token_ids) for c in call.choices}) == 1

    def test_an_unknown_name_lists_the_known(self, custom: Engine) -> None:
        with pytest.raises(InvalidRequest, match="registered: broken, disallowed_tokens, "):
            said(custom, ask("nobody"))


def test_forced_tokens_pass_the_processor_too(custom: Engine) -> None:
    asked = ask("broken", after=2, grammar='start: "the quick brown fox jumps"', max_tokens=30)
    [call] = said(custom, asked)
    assert isinstance(call.error, ProcessorError)
    assert len(call.choices[0].token_ids) == 2


@pytest.mark.parametrize("path", ["nowhere:X", "math:nowhere", "math:pi", "math", ":x"])
def test_code_that_is_not_there_is_refused_at_start(path: str) -> None:
    with pytest.raises(ValueError, match="logit processor 'mine'"):
        load_processors({"mine": path})
