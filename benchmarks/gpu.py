"""The engine on an NVIDIA GPU, against what the GPU can do and against transformers.

    python -m benchmarks.gpu [--shapes 135m,1b,8b] [--batches 1,8,32,64] [--json FILE]

Needs a GPU, and neither network nor model files: models have random weights. In one process:
the tokens of a tiny float32 model on the GPU and on the CPU, which must be equal; the decode step
against the time that reading weights and cache takes at the bandwidth of a copy; the prefill
against the rate of a large matrix product; decoding under a regular expression against free; and
transformers' continuous batching on the same prompts.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.random_models import SHAPES, Shape, make_engine, make_model
from workers.engine.cuda.attention import has_paged_kernel
from workers.engine.engine import Engine
from workers.engine.request import Request, SamplingParams

_ASCII_TEXT = r"start: /[ -~\n]+/"
_COPY_BYTES = 2**30
_PRODUCT_SIZE = 8192

Prompts = list[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Limits:
    """What the device reached in this run: bytes/s of a copy, FLOP/s of a bfloat16 product."""

    bandwidth: float
    flops: float


@dataclass(frozen=True, slots=True)
class Job:
    """What every run generates: prompts of ``prompt_tokens``, then ``new_tokens`` each."""

    prompt_tokens: int
    new_tokens: int
    prefill_tokens: int
    repeats: int


@dataclass(frozen=True, slots=True)
class DecodeRow:
    """Decoding at one batch size. ``step_ms`` and ``limit_ms`` per step, rates in tokens/s with
    the prefill included; None where transformers could not run."""

    batch: int
    step_ms: float
    limit_ms: float
    engine: float
    constrained: float
    transformers: float | None


@dataclass(frozen=True, slots=True)
class Result:
    shape: str
    prefill_tokens_per_s: float
    prefill_of_peak: float
    decode: list[DecodeRow]
    transformers_error: str | None


def decode_limit(shape: Shape, batch: int, context: int, itemsize: int, limits: Limits) -> float:
    """Seconds to read all weights and the cache of ``batch`` sequences once."""
    weights = (shape.layer_parameters + shape.head_parameters) * itemsize
    return (weights + batch * shape.kv_bytes(context, itemsize)) / limits.bandwidth


def prefill_flops(shape: Shape, num_tokens: int) -> float:
    """Operations of one causal prompt: two per weight and token, half a square in attention."""
    attention = 2 * shape.layers * shape.heads * shape.head_dim * num_tokens**2
    return 2.0 * shape.layer_parameters * num_tokens + attention


def measure_limits(device: torch.device, copy_bytes: int, product_size: int) -> Limits:
    """A copy moves each byte twice; both are the best of several runs."""
    source = torch.empty(copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    a, b = (
        torch.randn(product_size, product_size, device=device).to(torch.bfloat16) for _ in range(2)
    )
    copying = best_of(10, lambda: target.copy_(source), device)
    multiplying = best_of(10, lambda: a @ b, device)
    return Limits(2 * copy_bytes / copying, 2 * product_size**3 / multiplying)


def best_of(count: int, run: Callable[[], object], device: torch.device) -> float:
    return min(seconds(run, device) for _ in range(count))


def seconds(run: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def generate(
    engine: Engine, prompts: Prompts, params: SamplingParams, grammar: str | None = None
) -> list[list[int]]:
    requests = [Request(str(i), (p,), params, grammar) for i, p in enumerate(prompts)]
    completions = engine.generate(requests)
    errors = [completion.error for completion in completions if completion.error]
    if errors:
        raise errors[0]
    return [completion.choices[0].token_ids for completion in completions]


def exactly(num_tokens: int, **params: Any) -> SamplingParams:
    """Parameters of a text of this many tokens, whatever they are."""
    fixed = {"max_tokens": num_tokens, "min_tokens": num_tokens, "ignore_eos": True}
    return SamplingParams(**{"temperature": 0.0, **fixed, **params})


def random_prompts(shape: Shape, count: int, length: int, seed: int) -> Prompts:
    draw = random.Random(seed)  # noqa: S311 - prompts, not secrets
    return [tuple(draw.choices(range(1, shape.vocabulary), k=length)) for _ in range(count)]


def decode_prompts(shape: Shape, batch: int, job: Job, turn: int) -> Prompts:
    """Others in every turn, so that no prefix of them is cached."""
    return random_prompts(shape, batch, job.prompt_tokens, seed=1000 * (turn + 1) + batch)


def unequal_tokens(device: str) -> list[str]:
    """What the tiny float32 model says otherwise on ``device`` than on the CPU: nothing, it is
    hoped, for greedy and seeded, free and constrained rows in mixed batches over chunk borders."""
    shape = SHAPES["tiny"]
    prompts = [p for i in range(12) for p in random_prompts(shape, 1, 1 + 23 * i, seed=i)]
    variants: dict[str, tuple[SamplingParams, str | None]] = {
        "greedy": (exactly(40), None),
        "seeded": (exactly(40, temperature=0.9, top_p=0.9, top_k=50, seed=7), None),
        "penalised": (exactly(40, frequency_penalty=0.7, repetition_penalty=1.2), None),
        "constrained": (exactly(40), _ASCII_TEXT),
    }
    engines = [
        make_engine(shape, where, "float32", max_num_seqs=8, kv_cache_bytes=2**26)
        for where in ("cpu", device)
    ]
    found = []
    for name, (params, grammar) in variants.items():
        expected, actual = (generate(engine, prompts, params, grammar) for engine in engines)
        for i, (want, got) in enumerate(zip(expected, actual, strict=True)):
            if want != got:
                first = next(
                    j for j, pair in enumerate(zip(want, got, strict=True)) if len({*pair}) > 1
                )
                found.append(
                    f"{name}, prompt of {len(prompts[i])} tokens: differs at token {first}"
                )
    return found


class TransformersRunner:
    """transformers' continuous batching over a model of its own, kept running between turns."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self._model = make_model(shape, torch.bfloat16, device, "sdpa")

    def rate(self, shape: Shape, batch: int, job: Job) -> float:
        """Tokens per second, median of turns after one that does not count."""
        make_config: Any = transformers.GenerationConfig
        config = make_config(
            max_new_tokens=job.new_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        manager: Any = self._model.init_continuous_batching(generation_config=config)
        manager.start()
        try:
            turns = [
                self._turn(manager, decode_prompts(shape, batch, job, turn), job.new_tokens)
                for turn in range(job.repeats + 1)
            ]
        finally:
            manager.stop(block=True)
        return batch * job.new_tokens / statistics.median(turns[1:])

    def _turn(self, manager: Any, prompts: Prompts, new_tokens: int) -> float:
        start = time.perf_counter()
        manager.add_requests([list(prompt) for prompt in prompts], max_new_tokens=new_tokens)
        finished = 0
        while finished < len(prompts):
            result = manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                assert len(result.generated_tokens) == new_tokens, result.error
                finished += 1
            elif result is None and not manager.is_running():
                raise RuntimeError("its generation thread ended")
        return time.perf_counter() - start


def measure_decode(
    engine: Engine, shape: Shape, batch: int, job: Job, limits: Limits, device: torch.device
) -> DecodeRow:
    """The step is the slope between a short and a long run, which prefill and start-up leave."""
    short = max(1, job.new_tokens // 4)

    def timed(turn: int, new_tokens: int, grammar: str | None = None) -> float:
        prompts = decode_prompts(shape, batch, job, turn)
        return seconds(lambda: generate(engine, prompts, exactly(new_tokens), grammar), device)

    turns = [
        (
            timed(3 * turn, short),
            timed(3 * turn + 1, job.new_tokens),
            timed(3 * turn + 2, job.new_tokens, _ASCII_TEXT),
        )
        for turn in range(job.repeats + 1)
    ]
    brief, free, constrained = map(statistics.median, zip(*turns[1:], strict=True))
    context = job.prompt_tokens + (short + job.new_tokens) // 2
    return DecodeRow(
        batch=batch,
        step_ms=1e3 * (free - brief) / (job.new_tokens - short),
        limit_ms=1e3 * decode_limit(shape, batch, context, 2, limits),
        engine=batch * job.new_tokens / free,
        constrained=batch * job.new_tokens / constrained,
        transformers=None,
    )


def measure_prefill(
    engine: Engine, shape: Shape, job: Job, limits: Limits, device: torch.device
) -> tuple[float, float]:
    """Tokens per second of prompts that fill the budget, and that rate's share of the peak."""
    length = min(1024, job.prefill_tokens)
    count = max(1, job.prefill_tokens // length)
    turns = []
    for turn in range(job.repeats + 1):
        prompts = random_prompts(shape, count, length, seed=turn)
        turns.append(seconds(partial(generate, engine, prompts, exactly(1)), device))
    elapsed = statistics.median(turns[1:])
    return count * length / elapsed, count * prefill_flops(shape, length) / elapsed / limits.flops


def measure(
    name: str, batches: Sequence[int], job: Job, limits: Limits, device: torch.device
) -> Result:
    """One shape. Both models fit side by side: the engine's cache is as large as the job needs."""
    shape = SHAPES[name]
    needed = (max(batches) + 8) * (job.prompt_tokens + job.new_tokens + 1280)
    engine = make_engine(
        shape, str(device), "bfloat16", max(batches), kv_cache_bytes=shape.kv_bytes(needed, 2)
    )
    prefill, of_peak = measure_prefill(engine, shape, job, limits, device)
    rows = [measure_decode(engine, shape, batch, job, limits, device) for batch in batches]
    engine.stop()
    del engine
    rates, error = transformers_rates(shape, batches, job, device)
    decode = [
        DecodeRow(**{**asdict(row), "transformers": rate})
        for row, rate in zip(rows, rates, strict=True)
    ]
    return Result(name, prefill, of_peak, decode, error)


def transformers_rates(
    shape: Shape, batches: Sequence[int], job: Job, device: torch.device
) -> tuple[list[float | None], str | None]:
    """Their rates, or why there are none: another version may not run on this machine at all."""
    if device.type != "cuda":
        return [None] * len(batches), "needs a GPU"
    torch.cuda.empty_cache()
    try:
        runner = TransformersRunner(shape, device)
        return [runner.rate(shape, batch, job) for batch in batches], None
    except Exception as error:  # noqa: BLE001 - whatever it is, our own figures stand
        return [None] * len(batches), f"{type(error).__name__}: {error}"


def print_result(result: Result) -> None:
    print(
        f"\n{result.shape}: prefill {result.prefill_tokens_per_s:,.0f} tokens/s, "
        f"{result.prefill_of_peak:.0%} of the peak"
    )
    head = ["batch", "step ms", "limit ms", "of limit", "tokens/s", "constrained", "ratio",
            "transformers", "ratio"]  # fmt: skip
    print(" ".join(f"{name:>12}" for name in head))
    for row in result.decode:
        theirs = f"{row.transformers:>12.0f} {row.engine / row.transformers:>11.2f}x" if (
            row.transformers
        ) else f"{'-':>12} {'-':>12}"  # fmt: skip
        print(
            f"{row.batch:>12} {row.step_ms:>12.3f} {row.limit_ms:>12.3f} "
            f"{row.limit_ms / row.step_ms:>12.0%} {row.engine:>12.0f} {row.constrained:>12.0f} "
            f"{row.constrained / row.engine:>11.2f}x {theirs}"
        )
    if result.transformers_error:
        print(f"transformers' continuous batching did not run: {result.transformers_error}")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    known = [name for name in SHAPES if name != "tiny"]
    parser.add_argument("--shapes", default=",".join(known), help="by commas")
    parser.add_argument("--batches", default="1,8,32,64", help="batch sizes, by commas")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--prefill-tokens", type=int, default=8192)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    args = parser.parse_args(argv)
    if unknown := set(args.shapes.split(",")) - set(known):
        parser.error(f"unknown shapes: {', '.join(unknown)}; known: {', '.join(known)}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """0 if everything ran and the tokens were equal; 1 if not, or without a GPU."""
    args = parse_args(argv)
    if not torch.cuda.is_available():
        print("There is no NVIDIA GPU that this torch can use: nothing was measured.")
        return 1
    device = torch.device("cuda", torch.cuda.current_device())
    machine = {
        "gpu": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "transformers": transformers.__version__,
        "attention": "varlen_attn over pages" if has_paged_kernel(device) else "gathered pages",
    }
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    unequal = unequal_tokens(str(device))
    print("tiny float32 model, GPU and CPU: " + ("; ".join(unequal) or "equal tokens"))
    limits = measure_limits(device, _COPY_BYTES, _PRODUCT_SIZE)
    print(f"copy {limits.bandwidth / 1e9:,.0f} GB/s, product {limits.flops / 1e12:,.0f} TFLOP/s")
    job = Job(args.prompt_tokens, args.new_tokens, args.prefill_tokens, args.repeats)
    batches = [int(batch) for batch in args.batches.split(",")]
    results = []
    for name in args.shapes.split(","):
        results.append(measure(name, batches, job, limits, device))
        print_result(results[-1])
    if args.json:
        document = {
            "machine": machine,
            "unequal": unequal,
            "limits": asdict(limits),
            "job": asdict(job),
            "shapes": [asdict(result) for result in results],
        }
        args.json.write_text(json.dumps(document, indent=1))
    return 1 if unequal else 0


if __name__ == "__main__":
    sys.exit(main())
