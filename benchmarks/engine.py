"""The engine against ``transformers.generate``: tokens per second by batch size, and where the
time of a step goes.

    python -m benchmarks.engine [--model FOLDER]

Both run the same random prompts greedily to the same length in one process, by turns; the table
gives medians. ``constrained`` is the engine again under a regular expression.
"""

import argparse
import json
import platform
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from workers.engine.config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.request import Request, SamplingParams

_DEMO_MODEL = "var/models/smollm2-135m-instruct"
_ASCII_TEXT = r"start: /[ -~\n]+/"

Prompts = list[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Row:
    """Tokens per second at one batch size, and milliseconds per step of the free run by phase."""

    batch: int
    engine: float
    constrained: float
    transformers: float
    ratio: float
    step_ms: dict[str, float]


@dataclass(frozen=True, slots=True)
class Job:
    """What every run of the benchmark generates."""

    prompt_tokens: int
    new_tokens: int
    repeats: int


class EngineRunner:
    """Runs batches through one engine."""

    def __init__(self, path: str, config: EngineConfig) -> None:
        self.engine = Engine.from_pretrained(path, config)

    def run(self, prompts: Prompts, new_tokens: int, grammar: str | None = None) -> None:
        params = SamplingParams(
            max_tokens=new_tokens, min_tokens=new_tokens, temperature=0.0, ignore_eos=True
        )
        requests = [Request(str(i), (p,), params, grammar) for i, p in enumerate(prompts)]
        for completion in self.engine.generate(requests):
            assert len(completion.choices[0].token_ids) == new_tokens, completion.error

    def step_ms(self, run: Callable[[], None]) -> dict[str, float]:
        """Milliseconds per step of ``run``, by phase."""
        before = self.engine.stats()
        run()
        after = self.engine.stats()
        steps = after.steps - before.steps
        return {
            phase: 1e3 * (seconds - before.step_seconds.get(phase, 0.0)) / steps
            for phase, seconds in after.step_seconds.items()
        }


class TransformersRunner:
    """Runs batches through ``transformers.generate`` as its documentation shows."""

    def __init__(self, path: str, dtype: str) -> None:
        if dtype == "int8":  # of Quire's own; the activations are in bfloat16
            dtype = "bfloat16"
        self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
        self._num_threads = torch.get_num_threads()

    @torch.inference_mode()
    def run(self, prompts: Prompts, new_tokens: int) -> None:
        torch.set_num_threads(self._num_threads)  # the engine chooses its own
        ids = torch.tensor(prompts)
        output = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
        )
        assert output.shape[1] == ids.shape[1] + new_tokens


def measure(engine: EngineRunner, baseline: TransformersRunner, batch: int, job: Job) -> Row:
    """One batch size: the three contenders by turns, after a turn that does not count."""
    vocabulary = range(engine.engine.vocab_size)
    draw = random.Random(batch)  # noqa: S311 - prompts, not secrets

    def prompts() -> Prompts:
        return [tuple(draw.choices(vocabulary, k=job.prompt_tokens)) for _ in range(batch)]

    contenders: dict[str, Callable[[], None]] = {
        "engine": lambda: engine.run(prompts(), job.new_tokens),
        "constrained": lambda: engine.run(prompts(), job.new_tokens, _ASCII_TEXT),
        "transformers": lambda: baseline.run(prompts(), job.new_tokens),
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(job.repeats + 1):
        for name, run in contenders.items():
            start = time.perf_counter()
            run()
            if turn > 0:
                rates[name].append(batch * job.new_tokens / (time.perf_counter() - start))
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return Row(
        batch=batch,
        **medians,
        ratio=medians["engine"] / medians["transformers"],
        step_ms=engine.step_ms(contenders["engine"]),
    )


def machine(args: argparse.Namespace) -> dict[str, Any]:
    """What the figures depend on."""
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
    phases = list(rows[0].step_ms)
    print("tokens/s, medians; then milliseconds per step")
    head = ["batch", "engine", "constrained", "transformers", "ratio", *phases]
    print(" ".join(f"{name:>12}" for name in head))
    for row in rows:
        figures = [row.engine, row.constrained, row.transformers]
        cells = [f"{row.batch:>12}", *(f"{x:>12.1f}" for x in figures), f"{row.ratio:>11.2f}x"]
        print(" ".join([*cells, *(f"{row.step_ms[phase]:>12.2f}" for phase in phases)]))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default=_DEMO_MODEL, help="a model folder or hub name")
    parser.add_argument("--batches", default="1,8,32,64", help="batch sizes, by commas")
    parser.add_argument("--dtype", default="auto", help="as in models.toml")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    batches = [int(size) for size in args.batches.split(",")]
    job = Job(args.prompt_tokens, args.new_tokens, args.repeats)
    baseline = TransformersRunner(args.model, args.dtype)
    engine = EngineRunner(args.model, EngineConfig(dtype=args.dtype, max_num_seqs=max(batches)))
    rows = [measure(engine, baseline, batch, job) for batch in batches]
    if args.json:
        print(json.dumps({"machine": machine(args), "rows": [asdict(row) for row in rows]}))
    else:
        print(", ".join(f"{name} {value}" for name, value in machine(args).items()))
        print_rows(rows)


if __name__ == "__main__":
    main()
