"""What a common prefix costs: requests that begin alike against as many that do not.

    python -m benchmarks.prefix [--model FOLDER]

One engine runs both by turns, each turn with other tokens, so that nothing is cached when it
begins. Figures are medians.
"""

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from workers.engine.config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.request import Request, SamplingParams

_DEMO_MODEL = "var/models/smollm2-135m-instruct"
_WARM_UP = 1

Prompts = list[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Job:
    """``requests`` prompts of ``prefix`` tokens and ``own`` more, and ``new_tokens`` for each."""

    requests: int
    prefix: int
    own: int
    new_tokens: int
    repeats: int


@dataclass(frozen=True, slots=True)
class Result:
    """Median seconds of a turn, and the part of the prompts that came from the cache."""

    shared: float
    distinct: float
    shared_cached: float
    distinct_cached: float

    @property
    def ratio(self) -> float:
        return self.shared / self.distinct


def make_prompts(vocab_size: int, job: Job, shared: bool, seed: int) -> Prompts:
    draw = random.Random(seed)  # noqa: S311 - prompts, not secrets

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(draw.choices(range(1, vocab_size), k=count))

    common = tokens(job.prefix)
    return [
        (common if shared else tokens(job.prefix)) + tokens(job.own) for _ in range(job.requests)
    ]


def run(engine: Engine, prompts: Prompts, new_tokens: int) -> tuple[float, float]:
    """Seconds, and the share of prompt tokens that were cached."""
    params = SamplingParams(
        max_tokens=new_tokens, min_tokens=new_tokens, temperature=0.0, ignore_eos=True
    )
    requests = [Request(str(i), (prompt,), params) for i, prompt in enumerate(prompts)]
    start = time.perf_counter()
    completions = engine.generate(requests)
    elapsed = time.perf_counter() - start
    cached = 0
    for completion in completions:
        assert completion.usage is not None, completion.error
        cached += completion.usage.cached_tokens
    return elapsed, cached / sum(map(len, prompts))


def measure(engine: Engine, job: Job) -> Result:
    turns = []
    for turn in range(job.repeats + _WARM_UP):
        shared = make_prompts(engine.vocab_size, job, True, seed=2 * turn)
        distinct = make_prompts(engine.vocab_size, job, False, seed=2 * turn + 1)
        turns.append((*run(engine, shared, job.new_tokens), *run(engine, distinct, job.new_tokens)))
    columns = zip(*turns[_WARM_UP:], strict=True)
    shared_s, shared_cached, distinct_s, distinct_cached = map(statistics.median, columns)
    return Result(shared_s, distinct_s, shared_cached, distinct_cached)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=_DEMO_MODEL, help="a model folder or hub name")
    parser.add_argument("--dtype", default="auto", help="as in models.toml")
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--prefix-tokens", type=int, default=600)
    parser.add_argument("--own-tokens", type=int, default=40)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args(argv)
    job = Job(args.requests, args.prefix_tokens, args.own_tokens, args.new_tokens, args.repeats)
    result = measure(Engine.from_pretrained(args.model, EngineConfig(dtype=args.dtype)), job)
    print(
        f"{job.requests} requests of {job.prefix} + {job.own} prompt tokens, "
        f"{job.new_tokens} new tokens each"
    )
    print(f"{'prefix':>10} {'seconds':>9} {'cached':>7}")
    print(f"{'shared':>10} {result.shared:>9.2f} {result.shared_cached:>6.0%}")
    print(f"{'distinct':>10} {result.distinct:>9.2f} {result.distinct_cached:>6.0%}")
    print(f"{'ratio':>10} {result.ratio:>9.2f}")


if __name__ == "__main__":
    main()
