"""Chunks of prompts in an engine whose clock is simulated."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.workers.engine.driving import MakeEngine, advance, request
from workers.engine.core.model_input import ModelInput
from workers.engine.core.request import Audience, Request
from workers.engine.engine import Engine

PROMPT = tuple(range(1, 241))
LIMIT = 0.05


class Clock:
    """A clock that only the forward pass advances: 5 ms and 1 ms for each row."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def watch(self, engine: Engine) -> None:
        forward = engine.runner.forward

        def timed(batch: ModelInput) -> Any:
            self.now += 0.005 + 0.001 * len(batch.input_ids)
            return forward(batch)

        engine.runner.forward = timed  # type: ignore[method-assign]


def serve(engine: Engine, clock: Clock, audience: Audience) -> tuple[list[float], dict[str, Any]]:
    """Submit a long prompt beside a sequence that generates. Return the seconds of the steps that
    computed the prompt, and all tokens by request."""
    clock.watch(engine)
    reader = replace(request("reader", max_tokens=60, ignore_eos=True), audience=audience)
    tokens: dict[str, list[int]] = {"reader": [], "long": []}
    engine.submit(reader)
    for _ in range(10):
        collect(engine, tokens)
    engine.submit(Request((PROMPT,), reader.sampling, request_id="long"))
    seconds = []
    while not tokens["long"]:
        began = clock.now
        collect(engine, tokens)
        seconds.append(clock.now - began)
    while engine.scheduler.has_work:
        collect(engine, tokens)
    return seconds, tokens


def collect(engine: Engine, tokens: dict[str, list[int]]) -> None:
    for output in advance(engine):
        assert output.error is None
        for delta in output.deltas:
            tokens[output.request_id] += delta.token_ids


@pytest.mark.represented_by("False")
@pytest.mark.parametrize("speculation", [False, True])
def test_steps_beside_a_stream_keep_to_the_limit_and_change_no_token(
    make_engine: MakeEngine, speculation: bool
) -> None:
    served = {}
    for audience in (Audience.TOKENS, Audience.NOBODY):
        clock = Clock()
        engine = make_engine(
            clock, step_ms=1000 * LIMIT, max_num_batched_tokens=512, speculation=speculation
        )
        served[audience] = serve(engine, clock, audience)
    seconds, tokens = served[Audience.TOKENS]
    assert len(seconds) > 5
    assert max(seconds) <= LIMIT
    alone, same = served[Audience.NOBODY]
    assert len(alone) == 1
    assert tokens == same
