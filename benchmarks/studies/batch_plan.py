"""The prompt tokens that the planned order of a batch's lines saves, predicted and measured.

    python -m benchmarks.studies.batch_plan [--model FOLDER]

Shuffled lines with a few prefixes run on one engine whose KV cache holds less than all prefixes:
first in the order of the file, then in the order that `completions.batches.planning` chooses. The
model of the cache predicts how many prompt tokens each order saves; the engine reports how many it
saved.
"""

import random
import time
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks import command_line
from benchmarks.engine.turns import DEMO_MODEL, Prompts, exactly, generate, random_prompts
from completions.batches.planning.cache import CacheSize, count_cached_tokens
from completions.batches.planning.prefixes import hash_prefixes, plan_order
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.engine import Engine


class Run(NamedTuple):
    """One order of the lines: tokens that the cache saves, and seconds."""

    predicted: int
    measured: int
    seconds: float


def shuffle_lines(
    vocab_size: int, lines: int, prefixes: int, prefix_tokens: int, own_tokens: int
) -> Prompts:
    """Return prompts, each a shared prefix and tokens of its own, in random order."""
    common = random_prompts(vocab_size, prefixes, prefix_tokens, seed=1)
    own = random_prompts(vocab_size, lines, own_tokens, seed=2)
    prompts = [common[n % prefixes] + tokens for n, tokens in enumerate(own)]
    random.Random(3).shuffle(prompts)
    return prompts


def run(engine: Engine, prompts: Prompts, order: Sequence[int], new_tokens: int) -> Run:
    """Run the prompts in this order. The engine's cache must not have any of them."""
    stats = engine.stats()
    size = CacheSize(stats.kv_blocks_total, stats.slots, stats.block_size)
    chosen = [prompts[index] for index in order]
    paths = (hash_prefixes(prompt, "", size.block_size) for prompt in chosen)
    lengths = (len(prompt) + new_tokens for prompt in chosen)
    predicted = count_cached_tokens(zip(paths, lengths, strict=True), size)
    began = time.perf_counter()
    done = generate(engine, chosen, exactly(new_tokens))
    seconds = time.perf_counter() - began
    measured = sum(each.usage.cached_tokens for each in done if each.usage is not None)
    return Run(predicted, measured, seconds)


def compare(engine: Engine, prompts: Prompts, new_tokens: int) -> tuple[Run, Run]:
    """Run the file's order, then the planned order. In between, other prompts fill the cache."""
    in_file_order = run(engine, prompts, range(len(prompts)), new_tokens)
    other = [tuple(reversed(prompt)) for prompt in prompts[: len(prompts) // 10]]
    generate(engine, other, exactly(1))  # fills the cache with something else
    order = plan_order([hash_prefixes(prompt, "") for prompt in prompts])
    return in_file_order, run(engine, prompts, order, new_tokens)


def main(argv: Sequence[str] | None = None) -> None:
    args = command_line.parser(
        __doc__,
        model=DEMO_MODEL,
        dtype="auto",
        lines=2000,
        prefixes=50,
        prefix_tokens=128,
        own_tokens=8,
        new_tokens=2,
        slots=8,
        cache_mib=64,
    ).parse_args(argv)
    config = EngineConfig(
        dtype=args.dtype, max_num_seqs=args.slots, kv_cache_bytes=args.cache_mib * 2**20
    )
    engine = build_engine(args.model, config)
    prompts = shuffle_lines(
        engine.vocab_size, args.lines, args.prefixes, args.prefix_tokens, args.own_tokens
    )
    total = sum(map(len, prompts))
    print(
        f"{args.lines} lines, {args.prefixes} prefixes of {args.prefix_tokens} tokens, cache of "
        f"{engine.stats().kv_blocks_total * config.block_size} tokens"
    )
    print(f"{'order':>8} {'seconds':>8} {'computed':>9} {'predicted':>9} {'cached':>7}")
    runs = compare(engine, prompts, args.new_tokens)
    for name, each in zip(("file", "planned"), runs, strict=True):
        print(
            f"{name:>8} {each.seconds:>8.1f} {total - each.measured:>9} "
            f"{total - each.predicted:>9} {each.measured / total:>7.1%}"
        )
    before, after = runs
    apart = abs(after.predicted - after.measured) / max(1, after.measured)
    print(f"time {after.seconds / before.seconds:.0%}; prediction off by {apart:.2%}")


if __name__ == "__main__":
    main()
