"""Compare the C forward with the model's modules: tokens per second of one thread's CPU time.

    python -m benchmarks.studies.forwards [--model FOLDER, or --shape a shape of
        benchmarks.random_models] [--dtype bfloat16] [--batches 1,8,32 --new-tokens 24,12,6]
        [--products torch]

``--shape`` makes a random model of a family. One engine takes turns with and without its C
forward; the products of its modules are the same kernels. With ``--products torch``, the modules
are those of a second engine, which has no kernels: torch alone. They generate greedily from random
prompts. Medians.
"""

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import command_line
from benchmarks.command_line import print_columns
from benchmarks.engine.turns import DEMO_MODEL, Prompts, exactly, generate, random_prompts
from benchmarks.random_models import save_random
from workers.engine.backends.cpu.layers.library import load_library
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.engine import Engine


def build_with_torch_alone(model: Path, config: EngineConfig) -> Engine:
    os.environ["QUIRE_INSTRUCTIONS"] = "none"
    load_library.cache_clear()
    engine = build_engine(model, config)
    del os.environ["QUIRE_INSTRUCTIONS"]
    load_library.cache_clear()
    return engine


def rate(engine: Engine, prompts: Prompts, new_tokens: int) -> float:
    """Return new tokens per second of CPU time. The prompts' time is included."""
    began = time.process_time()
    generate(engine, prompts, exactly(new_tokens))
    return len(prompts) * new_tokens / (time.process_time() - began)


def main() -> None:
    parser = command_line.parser(
        __doc__,
        model=DEMO_MODEL,
        shape="",
        dtype="bfloat16",
        batches=[1, 8, 32],
        new_tokens=[24, 12, 6],
        prompt_tokens=16,
        repeats=3,
    )
    parser.add_argument("--products", choices=("packed", "torch"), default="packed")
    args = parser.parse_args()
    if len(args.new_tokens) != len(args.batches):
        parser.error(
            "--new-tokens takes as many numbers as --batches, such as --batches 1,8 "
            "--new-tokens 24,12"
        )
    torch.set_num_threads(1)
    config = EngineConfig(
        device="cpu",
        dtype=args.dtype,
        max_num_seqs=max(args.batches),
        max_model_len=512,
        kv_cache_bytes=2**30,
        num_threads=1,
        speculation=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        model = save_random(Path(folder), args.shape) if args.shape else args.model
        engine = build_engine(model, config)
        alone = build_with_torch_alone(Path(model), config) if args.products == "torch" else engine
    runner: Any = engine.runner
    paged = runner._model
    seed = 0
    if engine.forward != "c":
        raise SystemExit(f"{args.model} is not computed in C, but by {engine.forward}")
    native = paged.native
    print_columns("rows", "modules", "C", "ratio")
    for batch, new_tokens in zip(args.batches, args.new_tokens, strict=True):
        rates: tuple[list[float], list[float]] = ([], [])
        for _ in range(args.repeats + 1):
            for found, each, forward in zip(rates, (alone, engine), (None, native), strict=True):
                paged.native, seed = forward, seed + 1
                prompts = random_prompts(engine.vocab_size, batch, args.prompt_tokens, seed)
                found.append(rate(each, prompts, new_tokens))
        modules, in_c = (statistics.median(found[1:]) for found in rates)  # the first warms up
        print_columns(batch, f"{modules:.1f}", f"{in_c:.1f}", f"{in_c / modules:.2f}")


if __name__ == "__main__":
    main()
