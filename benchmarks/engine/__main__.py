"""The engine against ``transformers.generate``: tokens per second by batch size, and where the
time of a step goes; then the C forward by context, against what this machine reaches.

    python -m benchmarks.engine [--model FOLDER]

Both generate greedily from random prompts to the same length, taking turns in one process; the
table gives medians. ``constrained`` is the engine again under a regular expression. Steps by
context are those of ``benchmarks.engine.contexts``, where the C forward computes the
model and it has no experts.
"""

import argparse
import platform
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks import command_line
from benchmarks.command_line import print_columns
from benchmarks.engine import contexts
from benchmarks.engine.turns import (
    ASCII_TEXT,
    DEMO_MODEL,
    exactly,
    generate,
    medians,
    random_prompts,
)
from benchmarks.peers import transformers_generate
from benchmarks.peers.protocol import Job, Runner
from benchmarks.ratios import write_run
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.engine import Engine


@dataclass(frozen=True, slots=True)
class Row:
    """Tokens per second at one batch size, and a free run's milliseconds per step by phase."""

    batch: int
    engine: float
    constrained: float
    transformers: float
    ratio: float
    step_ms: dict[str, float]


def measure(engine: Engine, baseline: Runner, batch: int, args: argparse.Namespace) -> Row:
    """Measure one batch size. Every run gets new prompts, so that no prefix is cached."""
    seeds = count(1000 * batch)

    def ours(grammar: str | None = None) -> None:
        prompts = random_prompts(engine.vocab_size, batch, args.prompt_tokens, next(seeds))
        generate(engine, prompts, exactly(args.new_tokens), grammar)

    def theirs() -> None:
        prompts = random_prompts(engine.vocab_size, batch, args.prompt_tokens, next(seeds))
        torch.set_num_threads(args.threads)  # the engine chooses its own
        baseline(Job(list(map(list, prompts)), args.new_tokens))

    runs = {"engine": ours, "constrained": lambda: ours(ASCII_TEXT), "transformers": theirs}
    seconds = medians(runs, args.repeats)
    rates = {name: batch * args.new_tokens / taken for name, taken in seconds.items()}
    before = engine.stats()
    ours()
    after = engine.stats()
    step_ms = {
        phase: 1e3 * (spent - before.step_seconds[phase]) / (after.steps - before.steps)
        for phase, spent in after.step_seconds.items()
    }
    return Row(batch, **rates, ratio=rates["engine"] / rates["transformers"], step_ms=step_ms)


def machine(args: argparse.Namespace) -> dict[str, Any]:
    """Return what the figures depend on: machine, versions and settings."""
    return {
        "model": Path(args.model).name,
        "dtype": args.dtype,
        "threads": torch.get_num_threads(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "prompt_tokens": args.prompt_tokens,
        "new_tokens": args.new_tokens,
        "repeats": args.repeats,
    }


def print_rows(rows: list[Row]) -> None:
    print("tokens/s, medians; then milliseconds per step")
    print_columns("batch", "engine", "constrained", "transformers", "ratio", *rows[0].step_ms)
    for row in rows:
        rates = [f"{rate:.1f}" for rate in (row.engine, row.constrained, row.transformers)]
        phases = [f"{milliseconds:.2f}" for milliseconds in row.step_ms.values()]
        print_columns(row.batch, *rates, f"{row.ratio:.2f}x", *phases)


def ratios(rows: list[Row]) -> dict[str, float]:
    """Return what a request gains over transformers, and keeps under a regular expression."""
    ratios = {}
    for row in rows:
        ratios[f"batch {row.batch}: engine / transformers"] = row.ratio
        ratios[f"batch {row.batch}: constrained / free"] = row.constrained / row.engine
    return ratios


def as_json(
    machine: dict[str, Any], rows: list[Row], by_context: contexts.Measures | None
) -> dict[str, Any]:
    """Return everything that was measured."""
    table = {"machine": machine, "rows": [asdict(row) for row in rows]}
    if by_context is not None:
        limits, (prompts, decoding) = by_context
        table |= {"limits": asdict(limits), "prompts": prompts, "decoding": decoding}
    return table


def main() -> None:
    parser = command_line.parser(
        __doc__,
        model=DEMO_MODEL,
        batches=[1, 8, 32, 64],
        dtype="auto",
        prompt_tokens=64,
        new_tokens=64,
        repeats=3,
        chunk=512,
        positions=[0, 512, 1536, 4096],
        contexts=[96, 1000, 2000],
    )
    parser.add_argument("--json", type=Path, help="also write all of it to this file")
    args = parser.parse_args()
    args.threads = torch.get_num_threads()
    # int8 and int4 are Quire's own; their activations are in bfloat16
    baseline, _ = transformers_generate.load(
        args.model, "bfloat16" if args.dtype in ("int8", "int4") else args.dtype
    )
    config = EngineConfig(dtype=args.dtype, max_num_seqs=max(args.batches))
    engine = build_engine(args.model, config)
    rows = [measure(engine, baseline, batch, args) for batch in args.batches]
    runner: Any = engine.runner
    is_measurable = engine.forward == "c" and not runner._model.native.has_experts
    del engine, runner, baseline  # and their memory
    by_context = contexts.measure(args) if is_measurable else None
    if args.json is not None:
        write_run(args.json, ratios(rows), **as_json(machine(args), rows, by_context))
    print(", ".join(f"{name} {value}" for name, value in machine(args).items()))
    print_rows(rows)
    if by_context is not None:
        contexts.print_all(*by_context)


if __name__ == "__main__":
    main()
