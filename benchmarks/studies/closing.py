"""The cost of `close` in a step, where every token is within the reserve.

    python -m benchmarks.studies.closing [--model FOLDER]

Choices of records are asked for under limits that the engine keeps free for the end from the first
token on; the least record has 64 tokens. Figures are CPU time of the thread that steps, on average
over the steps that decode: of a whole step, and of what closing does in it. Both are of the same
steps, so other load disturbs them alike.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partialmethod
from typing import Any
from unittest.mock import patch

from benchmarks import command_line
from benchmarks.command_line import print_columns
from benchmarks.engine.records import SCHEMA, RecordPrompts, schema_grammar
from benchmarks.engine.turns import DEMO_MODEL
from completions.contract.sampling import SamplingParams
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.core.request import Request
from workers.engine.engine import Engine
from workers.engine.grammar.closing import Closing

_ENTRIES = ("review", "leaves_only", "note")
"""The methods that steps call. None calls another."""


@contextmanager
def timed_closing() -> Iterator[list[float]]:
    """Collect the seconds of each call."""
    seconds: list[float] = []

    def call(closing: Closing, *args: Any, method: Callable[..., Any]) -> Any:
        began = time.thread_time()
        result = method(closing, *args)
        seconds.append(time.thread_time() - began)
        return result

    with ExitStack() as patches:
        for name in _ENTRIES:
            timed = partialmethod(call, method=getattr(Closing, name))
            patches.enter_context(patch.object(Closing, name, timed))
        yield seconds


def time_steps(engine: Engine, request: Request, closing: list[float]) -> tuple[int, float, float]:
    """Return how many steps decode, their seconds, and those of closing in them. The first step
    computes the prompt, and is left out."""
    steps = engine.stats().steps
    engine.submit(request)
    while engine.stats().steps == steps:
        engine.turn()
    closing.clear()
    steps, began = engine.stats().steps, time.thread_time()
    while engine.live:
        for output in engine.turn():
            if output.error is not None:
                raise output.error
    return engine.stats().steps - steps, time.thread_time() - began, sum(closing)


def main() -> None:
    parser = command_line.parser(
        __doc__, model=DEMO_MODEL, batches=[1, 8], limits=[64, 72, 80, 96, 120], requests=3,
        dtype="auto",
    )  # fmt: skip
    args = parser.parse_args()
    config = EngineConfig(dtype=args.dtype, num_threads=1, speculation=False)
    engine = build_engine(args.model, config)
    prompts = RecordPrompts(args.model)
    grammar = schema_grammar(json.loads(SCHEMA))
    print_columns("choices", "max_tokens", "step ms", "closing ms", "ratio")
    with timed_closing() as closing:
        for batch in args.batches:
            for limit in args.limits:
                rows = []
                for seed, prompt in enumerate(prompts.take(args.requests)):
                    params = SamplingParams(n=batch, max_tokens=limit, temperature=0.7, seed=seed)
                    request = Request(
                        (tuple(prompt),),
                        params,
                        grammar,
                        True,
                        request_id=f"{batch} {limit} {seed}",
                    )
                    rows.append(time_steps(engine, request, closing))
                steps, whole, part = map(sum, zip(*rows, strict=True))
                print_columns(
                    batch, limit, f"{1e3 * whole / steps:.2f}", f"{1e3 * part / steps:.2f}",
                    f"{whole / (whole - part):.3f}",
                )  # fmt: skip


if __name__ == "__main__":
    main()
