"""Runs an engine in the test's thread."""

from collections.abc import Callable
from typing import Any

from completions.contract.sampling import SamplingParams
from workers.engine.core.output import ChoiceDelta, Completion, RequestOutput
from workers.engine.core.request import Request
from workers.engine.engine import Engine

MakeEngine = Callable[..., Engine]

EOS = 0
GLM_EXAMPLE = 'start: "A" | "B"'


def request(
    request_id: str = "r",
    prompt: tuple[int, ...] = (5, 6, 7),
    *,
    grammar: str | None = None,
    **params: Any,
) -> Request:
    sampling = SamplingParams(**{"temperature": 0, **params})
    return Request((prompt,), sampling, grammar, request_id=request_id)


def run(engine: Engine, *requests: Request) -> list[Completion]:
    return engine.generate(requests)


def tokens(completions: list[Completion]) -> list[list[int]]:
    """The token ids of all choices of requests that all succeeded."""
    assert [completion.error for completion in completions] == [None] * len(completions)
    return [choice.token_ids for completion in completions for choice in completion.choices]


def choice(engine: Engine, request: Request) -> ChoiceDelta:
    [completion] = engine.generate([request])
    assert completion.error is None
    [choice] = completion.choices
    return choice


def steps(engine: Engine, *requests: Request, count: int) -> list[list[RequestOutput]]:
    for r in requests:
        engine.submit(r)
    return [advance(engine) for _ in range(count)]


def advance(engine: Engine) -> list[RequestOutput]:
    return engine.turn(wait=False)
