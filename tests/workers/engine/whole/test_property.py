"""The engine under any order of arrivals, aborts, deadlines and faults, in a cache too small for
all of them: everything ends once, what ends well says what it says alone, all memory comes back."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

from completions.contract.sampling import SamplingParams
from tests.workers.engine import greedy
from tests.workers.engine.tiny_models import BLOCK_BYTES
from workers.engine.backends.base.loaded_model import LoadedModel
from workers.engine.backends.cuda.backend import CudaBackend
from workers.engine.build import compose_engine
from workers.engine.checkpoints.loader import load_model, wrap_model
from workers.engine.config import EngineConfig
from workers.engine.core.output import ChoiceDelta, Completion, RequestOutput
from workers.engine.core.request import Request
from workers.engine.exceptions import DeadlineExceeded, GrammarError, InvalidLogits
from workers.engine.grammar.structured_output import GrammarMatcher

NUM_BLOCKS = 20
CONFIG = EngineConfig(
    device="cpu",
    dtype="float32",
    max_num_seqs=4,
    max_num_batched_tokens=11,
    block_size=4,
    num_threads=1,
    max_model_len=72,
    kv_cache_bytes=NUM_BLOCKS * BLOCK_BYTES,
)
GRAMMARS = {
    "classes": "start: /[a-z]{2,9} ?[0-9]+/",
    "forced": 'start: /[a-c]/ " the quick brown fox " /[0-9]{2}/ "; the end"',
    "only forced": 'start: "the quick brown"',
    "broken": "start: nowhere",
}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"seed": 3},
    "choices": {"seed": 14, "n": 3},
    "penalised": {"temperature": 0.0, "frequency_penalty": 0.5, "top_k": 20},
    "stopped": {"temperature": 0.0, "stop": ("e", "ab"), "min_tokens": 3},
    "held back": {"temperature": 0.0, "stop_regex": ("[a-z ]{4}!", "[0-9]{3}")},
    **{name: {"temperature": 0.0, "grammar": grammar} for name, grammar in GRAMMARS.items()},
    "everything": {
        "seed": 9, "n": 2, "grammar": GRAMMARS["forced"], "stop_regex": ("fo[a-z] [0-9]",),
    },
}  # fmt: skip


class EngineMachine(RuleBasedStateMachine):
    """The engine's thread, one turn at a time. Grammars are compiled when a rule says so."""

    loaded: ClassVar[LoadedModel]
    config: ClassVar[EngineConfig]
    alone: ClassVar[Callable[[str, int, int, int], Completion]]

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.engine = compose_engine(self.loaded, self.config, clock=lambda: self.now)
        self.compiling: list[Callable[[], None]] = []
        self.engine.structured_output.compile = self._compile_later  # type: ignore[method-assign]
        self.engine.runner.forward = self._forward  # type: ignore[method-assign]
        self.requests: dict[str, tuple[str, int, int, int]] = {}
        self.live: dict[str, Completion] = {}
        self.ended: dict[str, Completion] = {}
        self.deadlines: dict[str, float] = {}
        self.spoilt: set[str] = set()
        self.spoils_next = False

    def _compile_later(
        self, grammar: str, count: int, done: Callable[[list[GrammarMatcher] | Any], None]
    ) -> None:
        compiled = self.engine.structured_output.compile_now
        self.compiling.append(lambda: done(compiled(grammar, count)))

    def _forward(self, batch: Any) -> torch.Tensor:
        logits: torch.Tensor = type(self.engine.runner).forward(self.engine.runner, batch)
        if self.spoils_next and batch.sampled:
            logits[0] = torch.nan
            self.spoilt.add(self.engine.live.owner(batch.sampled[0]).request.request_id)
            self.spoils_next = False
        return logits

    @rule(
        kind=st.sampled_from(sorted(KINDS)),
        length=st.integers(1, 40),
        salt=st.integers(0, 1),
        max_tokens=st.integers(1, 40),
        priority=st.integers(0, 1),
        organization=st.sampled_from(["", "a"]),
        patience=st.sampled_from([None, None, 0, 3, 12]),
    )
    def submit(
        self,
        kind: str,
        length: int,
        salt: int,
        max_tokens: int,
        priority: int,
        organization: str,
        patience: int | None,
    ) -> None:
        name = str(len(self.requests))
        deadline = None if patience is None else self.now + patience
        request = make_request(
            name, kind, length, salt, max_tokens,
            priority=priority, organization=organization, deadline=deadline,
        )  # fmt: skip
        self.engine.submit(request)
        self.requests[name] = kind, length, salt, max_tokens
        self.live[name] = Completion.begin(request)
        if deadline is not None:
            self.deadlines[name] = deadline

    @precondition(lambda self: self.compiling)
    @rule(data=st.data())
    def compile(self, data: st.DataObject) -> None:
        self.compiling.pop(data.draw(st.integers(0, len(self.compiling) - 1)))()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.live)))
        self.engine.abort(name)
        del self.live[name]

    @rule()
    def abort_all(self) -> None:
        for name in self.live:
            self.engine.abort(name)
        self.live = {}

    @rule()
    def spoil(self) -> None:
        self.spoils_next = True

    @rule(count=st.integers(1, 6))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()

    def step(self) -> None:
        self.now += 1
        outputs = self.engine.turn(wait=False)
        assert len({output.request_id for output in outputs}) == len(outputs)
        for output in outputs:
            self._take(output)

    def _take(self, output: RequestOutput) -> None:
        name = output.request_id
        assert name in self.live, "neither ended nor aborted before"
        self.live[name].add(output)
        if output.finished:
            self.ended[name] = self.live.pop(name)

    @invariant()
    def blocks_are_held_as_often_as_counted(self) -> None:
        pool, scheduler = self.engine.pool, self.engine.scheduler
        held = [block for seq in scheduler.running for block in seq.block_ids]
        for block in range(1, pool.num_blocks + 1):
            assert pool.references[block] == held.count(block)
        slots = [seq.slot for seq in scheduler.running] + scheduler.free_slots
        assert sorted(slots) == list(range(self.config.max_num_seqs))
        assert not any(seq.finished for seq in scheduler.running)

    def teardown(self) -> None:
        for _ in range(3000):
            while self.compiling:
                self.compiling.pop()()
            self.step()
            if not (self.live or self.engine.live):
                break
        self.step()  # what was aborted last leaves with the next step
        assert not self.live, "everybody ends"
        assert not self.engine.live
        assert not self.engine.scheduler.has_work
        assert self.engine.stats().kv_blocks_used == 0
        for name, completion in self.ended.items():
            self._check(name, completion)
        self.engine.stop()

    def _check(self, name: str, completion: Completion) -> None:
        expected = type(self).alone(*self.requests[name])
        if isinstance(completion.error, InvalidLogits):
            assert name in self.spoilt
        elif isinstance(completion.error, DeadlineExceeded):
            assert name in self.deadlines
        elif self.requests[name][0] == "broken":
            assert isinstance(completion.error, GrammarError)
        else:
            assert completion.error is None
            assert [*map(essence, completion.choices)] == [*map(essence, expected.choices)]
            return
        for choice, whole in zip(completion.choices, expected.choices, strict=True):
            assert whole.token_ids[: len(choice.token_ids)] == choice.token_ids
            assert whole.text.startswith(choice.text)


def essence(choice: ChoiceDelta) -> tuple[Any, ...]:
    """What must not depend on neighbours; how much of a prompt was cached does."""
    return (
        choice.token_ids,
        choice.text,
        choice.finish_reason,
        choice.matched_stop,
        choice.matched_stop_text,
    )


def make_request(
    name: str, kind: str, length: int, salt: int, max_tokens: int, **fields: Any
) -> Request:
    params = {"max_tokens": max_tokens, **KINDS[kind]}
    grammar = params.pop("grammar", None)
    params["min_tokens"] = min(params.get("min_tokens", 0), max_tokens)
    prompt = greedy.prompt(length, salt)
    return Request((prompt,), SamplingParams(**params), grammar, **fields, request_id=name)


def load_as_on_a_gpu(path: Path, config: EngineConfig) -> LoadedModel:
    """On the CPU, for the GPU's code, which launches steps ahead."""
    backend = CudaBackend(torch.device("cpu"))
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation=backend.attention)
    return wrap_model(model, AutoTokenizer.from_pretrained(path), backend, config)


@pytest.mark.represented_by("load_model")
@pytest.mark.hypothesis
@pytest.mark.parametrize("load", [load_model, load_as_on_a_gpu])
def test_any_order_of_events(tiny_llama: Path, load: Callable[..., LoadedModel]) -> None:
    run_machine(tiny_llama, load(tiny_llama, CONFIG), CONFIG)


def run_machine(path: Path, loaded: LoadedModel, config: EngineConfig) -> None:
    """Hold an engine to one with room for everything, without a prefix cache, where each request
    is alone."""
    roomy = replace(
        config, max_num_batched_tokens=512, kv_cache_bytes=2**24, enable_prefix_caching=False
    )
    reference = compose_engine(load_model(path, roomy), roomy)

    @cache
    def alone(kind: str, length: int, salt: int, max_tokens: int) -> Completion:
        [completion] = reference.generate([make_request("r", kind, length, salt, max_tokens)])
        return completion

    machine = type(
        "Machine",
        (EngineMachine,),
        {"loaded": loaded, "config": config, "alone": staticmethod(alone)},
    )
    fixed = settings(stateful_step_count=25, derandomize=True)
    run_state_machine_as_test(machine, settings=fixed)
    reference.stop()
