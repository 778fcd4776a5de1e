"""Parts of benchmarks that compare engines: random prompts, exact output lengths, and turns."""

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from completions.contract.sampling import SamplingParams
from workers.engine.core.output import Completion
from workers.engine.core.request import Request
from workers.engine.engine import Engine

DEMO_MODEL = "var/models/smollm2-135m-instruct"
ASCII_TEXT = r"start: /[ -~\n]+/"

Prompts = list[tuple[int, ...]]


def random_prompts(vocab_size: int, count: int, length: int, seed: int) -> Prompts:
    draw = random.Random(seed)
    return [tuple(draw.choices(range(1, vocab_size), k=length)) for _ in range(count)]


def exactly(num_tokens: int, **params: Any) -> SamplingParams:
    """Return parameters of a greedy text of exactly this many tokens."""
    fixed = {"max_tokens": num_tokens, "min_tokens": num_tokens, "ignore_eos": True}
    return SamplingParams(**{"temperature": 0.0, **fixed, **params})


def generate(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
    grammar: str | None = None,
) -> list[Completion]:
    """Run one request for each prompt. Raises the error of a request that failed."""
    requests = [
        Request((tuple(p),), params, grammar, request_id=str(i)) for i, p in enumerate(prompts)
    ]
    completions = engine.generate(requests)
    for completion in completions:
        if completion.error is not None:
            raise completion.error
    return completions


def medians(runs: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return median seconds of each run. The runs take turns; the first turn does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(repeats + 1):
        for name, run in runs.items():
            began = time.perf_counter()
            run()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(each) for name, each in seconds.items()}
