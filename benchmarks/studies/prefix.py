"""What a shared prefix saves: requests with the same prefix against as many with different ones.

    python -m benchmarks.studies.prefix [--model FOLDER]

One engine runs both in alternation, each round with new tokens, so that nothing is cached when a
round begins. Figures are medians.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from itertools import count

from benchmarks import command_line
from benchmarks.engine.turns import DEMO_MODEL, Prompts, exactly, generate, medians, random_prompts
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig


def make_prompts(vocab_size: int, args: argparse.Namespace, shared: bool, seed: int) -> Prompts:
    """Prompts of ``prefix_tokens`` and ``own_tokens``; the prefixes are ``shared``, or differ."""
    length = args.prefix_tokens + args.own_tokens
    prompts = random_prompts(vocab_size, args.requests, length, seed)
    common = prompts[0][: args.prefix_tokens]
    return [(*common, *p[args.prefix_tokens :]) if shared else p for p in prompts]


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
    )
    args = parser.parse_args(argv)
    engine = build_engine(args.model, EngineConfig(dtype=args.dtype))
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


if __name__ == "__main__":
    main()
