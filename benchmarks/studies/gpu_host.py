"""The host's share of a decode step on a GPU, measured without one: the forward pass is a stub.

    python -m benchmarks.studies.gpu_host [--rows 1,64,256]

Everything that the engine does for a step runs as on a GPU, but over CPU tensors: scheduling,
tables, sampling and appending. Only CPU time counts, so other load matters little. "arithmetic" is
the time that the tensor operations of a step take longer than those of a step of one row: a GPU
computes rows in parallel. "host" is the rest.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import command_line
from benchmarks.command_line import print_columns
from benchmarks.engine.random_models import Shape, make_model, make_tokenizer
from completions.contract.sampling import SamplingParams
from workers.engine.backends.cuda.backend import CudaBackend
from workers.engine.backends.cuda.graphs import DecodeGraphs
from workers.engine.backends.cuda.runner import CudaRunner
from workers.engine.build import compose_engine
from workers.engine.checkpoints.loader import wrap_model
from workers.engine.config import EngineConfig
from workers.engine.core.request import Request
from workers.engine.engine import Engine

SHAPE = Shape(2, 64, 96, 4, 2, 256, tied=False, max_model_len=32768)
NEW_TOKENS = 64
IGNORED = 8
"""Steps at the start of a run that do not count: prompts, and memory that is touched first."""
ROUNDS = 3
"""Runs with and without the timer take turns; the fastest of each counts."""
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top_k": {"temperature": 0.8, "top_k": 20, "top_p": 0.95},
    "penalty": {"temperature": 0.8, "frequency_penalty": 0.5},
}


class OperationTimer(TorchDispatchMode):
    """Adds up the CPU time of tensor operations, without that of the Python between them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seconds = 0.0

    def __torch_dispatch__(
        self, operation: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        began = time.thread_time()
        result = operation(*args, **(kwargs or {}))
        self.seconds += time.thread_time() - began
        return result


class StubGraphs(DecodeGraphs):
    """Graphs that copy their input, as captured ones do, and return logits drawn earlier."""

    def __init__(self, max_rows: int) -> None:
        super().__init__(max_rows, max_rows, torch.device("cpu"))
        self._drawn = torch.randn(max_rows, SHAPE.vocabulary).to(torch.bfloat16)

    def replay(self, table: Tensor, logits_rows: Tensor) -> Tensor:
        self.table[: len(table)].copy_(table)
        self.logits_rows[: len(logits_rows)].copy_(logits_rows)
        return self._drawn[: len(logits_rows)]


def make_engine(rows: int) -> Engine:
    config = EngineConfig(
        device="cpu",
        dtype="bfloat16",
        max_num_seqs=rows,
        max_num_batched_tokens=8192,
        kv_cache_bytes=2**26,
    )
    backend = CudaBackend(torch.device("cpu"))
    model = make_model(SHAPE, torch.bfloat16, torch.device("cpu"), backend.attention)
    engine = compose_engine(
        wrap_model(model, make_tokenizer(SHAPE.vocabulary), backend, config), config
    )
    assert isinstance(engine.runner, CudaRunner)
    engine.runner.graphs = StubGraphs(rows)
    return engine


def measure(
    engine: Engine,
    rows: int,
    name: str,
    params: dict[str, Any],
    timer: OperationTimer | None = None,
) -> dict[str, float]:
    """Return a step's median CPU time and the mean duration of its phases, in milliseconds. With a
    ``timer``, the CPU time is that of tensor operations."""
    sampling = [
        SamplingParams(max_tokens=NEW_TOKENS, ignore_eos=True, seed=i, **params)
        for i in range(rows)
    ]
    for i, each in enumerate(sampling):
        engine.submit(Request(((1 + i % 200, 2, 3),), each, request_id=f"{name}-{i}"))
    steps: list[float] = []
    clock = time.thread_time if timer is None else lambda: timer.seconds
    engine.receive(wait=False)
    before = engine.stats().step_seconds
    while engine.live:
        began = clock()
        with timer or nullcontext():
            engine.step()
        steps.append(1e3 * (clock() - began))
    after = engine.stats().step_seconds
    phases = {k: 1e3 * (after[k] - before.get(k, 0)) / len(steps) for k in after}
    return {"step": statistics.median(steps[IGNORED:]), **phases}


def parse_args(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command_line.parser(__doc__, rows=[1, 64, 256])
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_args(argv)
    torch.set_num_threads(1)
    print_columns("rows", "kind", "CPU ms", "arithmetic", "host", "schedule", "sample", "append")
    of_one_row: dict[str, float] = {}
    for rows in sorted({1, *args.rows}):
        engine = make_engine(rows)
        for name, params in KINDS.items():
            measure(engine, rows, f"warm-{name}", params)
            of_steps, of_operations = [], []
            for _ in range(ROUNDS):
                of_steps.append(measure(engine, rows, name, params))
                timer = OperationTimer()
                of_operations.append(measure(engine, rows, name, params, timer)["step"])
            fastest = min(of_steps, key=lambda each: each["step"])
            operations = min(of_operations)
            arithmetic = operations - of_one_row.setdefault(name, operations)
            shown = [fastest["step"], arithmetic, fastest["step"] - arithmetic]
            shown += [fastest.get(k, 0.0) for k in ("schedule", "sample", "append")]
            print_columns(rows, name, *(f"{each:.3f}" for each in shown))
        engine.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
