"""What a shared prefix saves: requests with the same prefix against as many with different ones.

    python -m benchmarks.studies.prefix [--model FOLDER]
    python -m benchmarks.studies.prefix --prefix-tokens 1000 --own-tokens 3 --steps 40

One engine runs both in alternation, each round with new tokens, so that nothing is cached when a
round begins. Figures are medians. Then CPU milliseconds of a decode step after each kind of prompt,
and after prompts of ``short_tokens`` of their own; the prompts are cached when these steps begin.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from functools import partial
from itertools import count

from benchmarks import command_line
from benchmarks.engine.turns import DEMO_MODEL, Prompts, exactly, generate, medians, random_prompts
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.engine import Engine

_FIRST_STEPS = 4
"""Tokens of the short run that is subtracted, so that steps with prompts do not count."""


def make_prompts(vocab_size: int, args: argparse.Namespace, shared: bool, seed: int) -> Prompts:
    """Prompts of ``prefix_tokens`` and ``own_tokens``; the prefixes are ``shared``, or differ."""
    length = args.prefix_tokens + args.own_tokens
    prompts = random_prompts(vocab_size, args.requests, length, seed)
    common = prompts[0][: args.prefix_tokens]
    return [(*common, *p[args.prefix_tokens :]) if shared else p for p in prompts]


def measure_step(engine: Engine, prompts: Prompts, steps: int) -> float:
    """Return the CPU milliseconds of a decode step of these prompts, once they are cached."""

    def spend(num_tokens: int) -> float:
        began = time.process_time()
        generate(engine, prompts, exactly(num_tokens))
        return time.process_time() - began

    spend(_FIRST_STEPS)
    first = spend(_FIRST_STEPS)
    return 1e3 * (spend(_FIRST_STEPS + steps) - first) / steps


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_line.parser(
        __doc__,
        model=DEMO_MODEL,
        dtype="auto",
        requests=32,
        prefix_tokens=600,
        own_tokens=40,
        new_tokens=16,
        repeats=2,
        short_tokens=64,
        steps=20,
    )
    args = parser.parse_args(argv)
    config = EngineConfig(dtype=args.dtype, max_num_seqs=args.requests, speculation=False)
    engine = build_engine(args.model, config)
    seeds, cached = count(), {}

    def run(name: str) -> None:
        prompts = make_prompts(engine.vocab_size, args, name == "shared", next(seeds))
        used = [each.usage for each in generate(engine, prompts, exactly(args.new_tokens))]
        hits = sum(usage.cached_tokens for usage in used if usage is not None)
        cached[name] = hits / sum(map(len, prompts))

    seconds = medians({name: partial(run, name) for name in ("shared", "distinct")}, args.repeats)
    print(
        f"{args.requests} requests of {args.prefix_tokens} + {args.own_tokens} prompt tokens, "
        f"{args.new_tokens} new tokens each"
    )
    print(f"{'prefix':>10} {'seconds':>9} {'cached':>7}")
    for name, taken in seconds.items():
        print(f"{name:>10} {taken:>9.2f} {cached[name]:>6.0%}")
    print(f"{'ratio':>10} {seconds['shared'] / seconds['distinct']:>9.2f}")
    steps: dict[str, list[float]] = {"short": [], "shared": [], "distinct": []}
    for _ in range(args.repeats):
        for name, found in steps.items():
            length, seed = args.short_tokens, next(seeds)
            if name == "short":
                prompts = random_prompts(engine.vocab_size, args.requests, length, seed)
            else:
                prompts = make_prompts(engine.vocab_size, args, name == "shared", seed)
            found.append(measure_step(engine, prompts, args.steps))
    usual = statistics.median(steps["short"])
    print(f"{'after':>10} {'step ms':>9} {'ratio':>7}")
    for name, found in steps.items():
        each = statistics.median(found)
        print(f"{name:>10} {each:>9.2f} {each / usual:>7.2f}")


if __name__ == "__main__":
    main()
