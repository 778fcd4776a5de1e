"""Engines of several dtypes by turns in one process: tokens per second by batch size.

    python -m benchmarks.dtypes [--model FOLDER] [--dtypes int8,bfloat16,float32]

Every engine generates greedily from the same random prompts to the same length; the table gives
medians. ``--passage FILE`` tells in addition how likely each finds a text.
"""

import argparse
import os
import random
import statistics
import time
from pathlib import Path

import torch
from tokenizers import Tokenizer

from benchmarks.engine import EngineRunner, Prompts
from workers.engine.config import EngineConfig
from workers.engine.request import LogprobParams, Request, SamplingParams

_DEMO_MODEL = "var/models/smollm2-135m-instruct"


def rates(
    engines: dict[str, EngineRunner], batch: int, args: argparse.Namespace
) -> dict[str, float]:
    """Generated tokens per second at one batch size, after a turn that does not count."""
    draw = random.Random(batch)  # noqa: S311 - prompts, not secrets
    found: dict[str, list[float]] = {dtype: [] for dtype in engines}
    for turn in range(args.repeats + 1):
        vocabulary = range(next(iter(engines.values())).engine.vocab_size)
        prompts: Prompts = [
            tuple(draw.choices(vocabulary, k=args.prompt_tokens)) for _ in range(batch)
        ]
        for dtype, engine in engines.items():
            start = time.perf_counter()
            engine.run(prompts, args.new_tokens)
            if turn > 0:
                found[dtype].append(batch * args.new_tokens / (time.perf_counter() - start))
    return {dtype: statistics.median(values) for dtype, values in found.items()}


def loss(runner: EngineRunner, prompt: tuple[int, ...]) -> float:
    """Nats per token of a text."""
    wanted = (LogprobParams(logprob_start_len=0),)
    params = SamplingParams(max_tokens=1, temperature=0.0)
    [done] = runner.engine.generate([Request("passage", (prompt,), params, logprobs=wanted)])
    scored = done.choices[0].prompt_logprobs
    assert scored is not None, done.error
    return -float(scored.chosen[1 : len(prompt)].mean())


def tokens_of(model: str, passage: Path, most: int) -> tuple[int, ...]:
    tokenizer = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
    return tuple(tokenizer.encode(passage.read_text("utf-8")).ids[:most])


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default=_DEMO_MODEL, help="a model folder")
    parser.add_argument("--dtypes", default="int8,bfloat16,float32", help="by commas")
    parser.add_argument("--batches", default="1,8,32,64", help="batch sizes, by commas")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--passage", type=Path, action="append", default=[], help="a text file")
    parser.add_argument("--passage-tokens", type=int, default=1024, help="of it, at most")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    batches = [int(size) for size in args.batches.split(",") if size]
    dtypes = args.dtypes.split(",")
    cores = os.cpu_count() or 1
    print(f"{Path(args.model).name}, {cores} cores, torch {torch.__version__}", flush=True)
    seats = max(batches, default=1)
    engines = {
        dtype: EngineRunner(
            args.model,
            EngineConfig(device="cpu", dtype=dtype, max_num_seqs=seats, kv_cache_bytes=2**29),
        )
        for dtype in dtypes
    }
    print(" ".join(f"{name:>10}" for name in ["tokens/s", *dtypes]))
    for batch in batches:
        medians = rates(engines, batch, args)
        print(" ".join([f"{batch:>10}", *(f"{x:>10.1f}" for x in medians.values())]), flush=True)
    for passage in args.passage:
        prompt = tokens_of(args.model, passage, args.passage_tokens)
        for dtype, engine in engines.items():
            nats = loss(engine, prompt)
            print(f"{passage.name}, {len(prompt)} tokens, {dtype}: {nats:.4f} nats per token")


if __name__ == "__main__":
    main()
