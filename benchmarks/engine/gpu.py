"""The engine on an NVIDIA GPU, against what the GPU can do and against transformers.

    python -m benchmarks.engine.gpu [--shapes 135m,1b,8b] [--batches 1,8,32,64]

Needs a GPU, and neither network nor model files: models have random weights. First the tests marked
``gpu`` run. Then, in one process, it compares: the tokens of a tiny float32 model on the GPU and on
the CPU, which must be equal; the decode step against the time that reading weights and cache takes
at the bandwidth of a copy; the prefill against the rate of a large matrix product; decoding under a
regular expression against free decoding; and transformers' continuous batching on the same prompts.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
import transformers

from benchmarks import command_line
from benchmarks.command_line import print_columns
from benchmarks.engine.random_models import SHAPES, Shape, make_engine, make_model
from benchmarks.engine.turns import ASCII_TEXT, Prompts, exactly, generate, random_prompts
from completions.contract.sampling import SamplingParams
from workers.engine.backends.cuda.backend import CudaBackend
from workers.engine.backends.device import adapt
from workers.engine.config import EngineConfig
from workers.engine.engine import Engine

_COPY_BYTES = 2**30
_PRODUCT_SIZE = 8192


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


@dataclass(slots=True)
class DecodeRow:
    """Decoding at one batch size. ``step_ms`` and ``limit_ms`` per step, rates in tokens/s with
    the prefill included; None where transformers could not run."""

    batch: int
    step_ms: float
    limit_ms: float
    engine: float
    constrained: float
    transformers: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    shape: str
    prefill_tokens_per_s: float
    prefill_of_peak: float
    decode: list[DecodeRow]
    transformers_error: str | None


def decode_limit(shape: Shape, batch: int, context: int, itemsize: int, limits: Limits) -> float:
    """Return seconds to read all weights and the cache of ``batch`` sequences once."""
    weights = (shape.layer_parameters + shape.head_parameters) * itemsize
    return (weights + batch * shape.kv_bytes(context, itemsize)) / limits.bandwidth


def prefill_flops(shape: Shape, num_tokens: int) -> float:
    """Return operations of one causal prompt: two per weight and token, half a square in
    attention."""
    attention = 2 * shape.layers * shape.heads * shape.head_dim * num_tokens**2
    return 2.0 * shape.layer_parameters * num_tokens + attention


def measure_limits(device: torch.device, copy_bytes: int, product_size: int) -> Limits:
    """Return the best of several runs. A copy moves each byte twice: one read and one write."""
    source = torch.empty(copy_bytes, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    a, b = (
        torch.randn(product_size, product_size, device=device).to(torch.bfloat16) for _ in range(2)
    )
    copying = time_best(10, lambda: target.copy_(source), device)
    multiplying = time_best(10, lambda: a @ b, device)
    return Limits(2 * copy_bytes / copying, 2 * product_size**3 / multiplying)


def time_best(count: int, run: Callable[[], object], device: torch.device) -> float:
    return min(seconds(run, device) for _ in range(count))


def seconds(run: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def decode_prompts(shape: Shape, batch: int, job: Job, turn: int) -> Prompts:
    """Return prompts that differ in every turn, so that none has a cached prefix."""
    seed = 1000 * (turn + 1) + batch
    return random_prompts(shape.vocabulary, batch, job.prompt_tokens, seed)


def unequal_tokens(device: str) -> list[str]:
    """Return the differences between the tiny float32 model's tokens on ``device`` and on the CPU,
    for greedy and seeded, free and constrained rows in mixed batches over chunk borders."""
    shape = SHAPES["tiny"]
    prompts = [p for i in range(12) for p in random_prompts(shape.vocabulary, 1, 1 + 23 * i, i)]
    variants: dict[str, tuple[SamplingParams, str | None]] = {
        "greedy": (exactly(40), None),
        "seeded": (exactly(40, temperature=0.9, top_p=0.9, top_k=50, seed=7), None),
        "penalised": (exactly(40, frequency_penalty=0.7, repetition_penalty=1.2), None),
        "constrained": (exactly(40), ASCII_TEXT),
    }
    engines = [
        make_engine(shape, where, "float32", max_num_seqs=8, kv_cache_bytes=2**26)
        for where in ("cpu", device)
    ]
    differences = []
    for name, (params, grammar) in variants.items():
        done = (generate(engine, prompts, params, grammar) for engine in engines)
        for prompt, here, there in zip(prompts, *done, strict=True):
            pairs = zip(here.choices[0].token_ids, there.choices[0].token_ids, strict=True)
            first = next((i for i, (ours, theirs) in enumerate(pairs) if ours != theirs), None)
            if first is not None:
                differences.append(
                    f"{name}, prompt of {len(prompt)} tokens: differs at token {first}"
                )
    return differences


class TransformersRunner:
    """transformers' continuous batching over a model of its own, kept running between turns."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self._model = make_model(shape, torch.bfloat16, device, "sdpa")

    def rate(self, shape: Shape, batch: int, job: Job) -> float:
        """Return tokens per second, the median of turns after a warm-up turn."""
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
    """A step's time is the slope between a short and a long run: prefill and start-up cancel
    out."""
    short = max(1, job.new_tokens // 4)

    def time_call(turn: int, new_tokens: int, grammar: str | None = None) -> float:
        prompts = decode_prompts(shape, batch, job, turn)
        return seconds(lambda: generate(engine, prompts, exactly(new_tokens), grammar), device)

    turns = [
        (
            time_call(3 * turn, short),
            time_call(3 * turn + 1, job.new_tokens),
            time_call(3 * turn + 2, job.new_tokens, ASCII_TEXT),
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
    )


def measure_prefill(
    engine: Engine, shape: Shape, job: Job, limits: Limits, device: torch.device
) -> tuple[float, float]:
    """Return tokens per second of prompts that fill the budget, and the share of the peak rate."""
    length = min(1024, job.prefill_tokens)
    count = max(1, job.prefill_tokens // length)
    turns = []
    for turn in range(job.repeats + 1):
        prompts = random_prompts(shape.vocabulary, count, length, turn)
        turns.append(seconds(partial(generate, engine, prompts, exactly(1)), device))
    elapsed = statistics.median(turns[1:])
    return count * length / elapsed, count * prefill_flops(shape, length) / elapsed / limits.flops


def count_cached_tokens(batches: Sequence[int], job: Job, page: int) -> int:
    """Return the most tokens that a run caches, in whole pages, plus a page for a cut prompt."""
    decoding = max(batches) * (-(-(job.prompt_tokens + job.new_tokens) // page) + 1)
    prompts = max(1, job.prefill_tokens // 1024) * (-(-1025 // page) + 1)
    return page * max(decoding, prompts)


def measure(
    name: str, batches: Sequence[int], job: Job, limits: Limits, device: torch.device
) -> Result:
    """Measure one shape. The engine's cache is as large as the job needs, so that 8b fits into 24
    GB."""
    shape = SHAPES[name]
    needed = count_cached_tokens(
        batches, job, adapt(EngineConfig(device=str(device), dtype="bfloat16")).block_size
    )
    engine = make_engine(
        shape, str(device), "bfloat16", max(batches), kv_cache_bytes=shape.kv_bytes(needed, 2)
    )
    prefill, of_peak = measure_prefill(engine, shape, job, limits, device)
    rows = [measure_decode(engine, shape, batch, job, limits, device) for batch in batches]
    engine.stop()
    del engine
    rates, error = transformers_rates(shape, batches, job, device)
    for row, rate in zip(rows, rates, strict=True):
        row.transformers = rate
    return Result(name, prefill, of_peak, rows, error)


def transformers_rates(
    shape: Shape, batches: Sequence[int], job: Job, device: torch.device
) -> tuple[list[float | None], str | None]:
    """Return transformers' rates, or why there are none: some versions do not run on this
    machine."""
    if device.type != "cuda":
        return [None] * len(batches), "needs a GPU"
    torch.cuda.empty_cache()
    try:
        runner = TransformersRunner(shape, device)
        return [runner.rate(shape, batch, job) for batch in batches], None
    except Exception as error:  # noqa: BLE001 - our own figures are valid whatever it is
        return [None] * len(batches), f"{type(error).__name__}: {error}"


def print_result(result: Result) -> None:
    print(
        f"\n{result.shape}: prefill {result.prefill_tokens_per_s:,.0f} tokens/s, "
        f"{result.prefill_of_peak:.0%} of the peak"
    )
    print_columns(
        "batch",
        "step ms",
        "limit ms",
        "of limit",
        "tokens/s",
        "constrained",
        "ratio",
        "transformers",
        "ratio",
    )
    for row in result.decode:
        theirs = (
            [f"{row.transformers:.0f}", f"{row.engine / row.transformers:.2f}x"]
            if (row.transformers)
            else ["-", "-"]
        )
        print_columns(
            row.batch,
            f"{row.step_ms:.3f}",
            f"{row.limit_ms:.3f}",
            f"{row.limit_ms / row.step_ms:.0%}",
            f"{row.engine:.0f}",
            f"{row.constrained:.0f}",
            f"{row.constrained / row.engine:.2f}x",
            *theirs,
        )
    if result.transformers_error:
        print(f"transformers' continuous batching did not run: {result.transformers_error}")


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    known = [name for name in SHAPES if name != "tiny"]
    parser = command_line.parser(
        __doc__,
        shapes=",".join(known),
        batches=[1, 8, 32, 64],
        prompt_tokens=128,
        new_tokens=128,
        prefill_tokens=8192,
        repeats=3,
    )
    args = parser.parse_args(argv)
    if unknown := set(args.shapes.split(",")) - set(known):
        parser.error(f"unknown shapes: {', '.join(unknown)}; known: {', '.join(known)}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Return 0 if everything ran, tests passed and tokens were equal; 1 if not, or without a
    GPU."""
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
        "attention": str(CudaBackend(device).ways[0]),
    }
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    failed = run_tests()
    unequal = unequal_tokens(str(device))
    print("tiny float32 model, GPU and CPU: " + ("; ".join(unequal) or "equal tokens"))
    limits = measure_limits(device, _COPY_BYTES, _PRODUCT_SIZE)
    print(f"copy {limits.bandwidth / 1e9:,.0f} GB/s, product {limits.flops / 1e12:,.0f} TFLOP/s")
    job = Job(args.prompt_tokens, args.new_tokens, args.prefill_tokens, args.repeats)
    complete = True
    for name in args.shapes.split(","):
        try:
            print_result(measure(name, args.batches, job, limits, device))
        except torch.OutOfMemoryError as error:
            print(f"\n{name}: does not fit: {error}")
            complete = False
            torch.cuda.empty_cache()
    return 0 if complete and not (unequal or failed) else 1


def run_tests() -> bool:
    """Run the tests marked ``gpu``, where pytest is installed."""
    if find_spec("pytest") is None:
        print("tests marked gpu: not run, since pytest is not installed")
        return False
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-m", "gpu", "tests/workers/engine"]
    done = subprocess.run(command, check=False)
    print(f"tests marked gpu: {'failed' if done.returncode else 'passed'}", flush=True)
    return done.returncode != 0


if __name__ == "__main__":
    sys.exit(main())
