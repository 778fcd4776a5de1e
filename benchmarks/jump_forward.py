"""What the tokens cost that a grammar forces, and what jump-forward gives.

    python -m benchmarks.jump_forward [--model FOLDER]

Two engines, with and without jump-forward, run the same requests by turns. The first table compares
a run of forced tokens between two sampled ones with as many free tokens, the second counts whole
documents under a JSON schema. Figures are medians.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from workers.engine.config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.request import Request, SamplingParams

_DEMO_MODEL = "var/models/smollm2-135m-instruct"
_SCHEMA = Path(__file__).with_name("record_schema.json")
_NAMES = ("Ada", "Grace", "Alan", "Edsger", "Barbara", "Donald", "Frances", "Niklaus")
_TEXT = (
    "The engine appends what the grammar leaves no choice about, and the next step computes it. "
)
_WARM_UP = 1

Runs = dict[str, Callable[[], int]]


class Bench:
    """The requests of both tables, over one tokenizer."""

    def __init__(self, model: str, forced_tokens: int) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model)
        schema = {**json.loads(_SCHEMA.read_text()), "x-guidance": {"whitespace_flexible": False}}
        self._schema = json.dumps({"grammars": [{"json_schema": schema}]})
        self._num_forced = forced_tokens
        ids = self._encode(_TEXT * (forced_tokens // 10 + 1))[:forced_tokens]
        literal = json.dumps(f"{self._tokenizer.decode(ids)}:", ensure_ascii=False)
        self._forced = f"start: /[a-z]/ {literal} /[0-9]{{2}}/"

    def free(self, engine: Engine, batch: int) -> int:
        """As many tokens as :meth:`forced`, without a grammar."""
        tokens = self._num_forced + 4
        params = SamplingParams(
            max_tokens=tokens, min_tokens=tokens, temperature=0.0, ignore_eos=True
        )
        return self._run(engine, [Request(str(i), (p,), params) for i, p in self._prompts(batch)])

    def forced(self, engine: Engine, batch: int) -> int:
        params = SamplingParams(max_tokens=2 * self._num_forced, temperature=0.0)
        requests = [Request(str(i), (p,), params, self._forced) for i, p in self._prompts(batch)]
        return self._run(engine, requests)

    def documents(self, engine: Engine, batch: int) -> int:
        requests = [
            Request(
                str(i), (prompt,), SamplingParams(max_tokens=256, temperature=0.7, seed=i),
                self._schema,
            )
            for i, prompt in self._prompts(batch)
        ]  # fmt: skip
        return self._run(engine, requests)

    def _run(self, engine: Engine, requests: list[Request]) -> int:
        tokens = 0
        for completion in engine.generate(requests):
            assert completion.error is None, completion.error
            tokens += len(completion.choices[0].token_ids)
        return tokens

    def _prompts(self, batch: int) -> list[tuple[int, tuple[int, ...]]]:
        return [(i, self._prompt(_NAMES[i % len(_NAMES)], i)) for i in range(batch)]

    def _prompt(self, name: str, number: int) -> tuple[int, ...]:
        content = f"Write a JSON customer record for {name} number {number}."
        text = self._tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        return tuple(self._encode(text))

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids


def medians(runs: Runs, repeats: int) -> dict[str, tuple[float, int]]:
    """Seconds and tokens of each run, taken by turns."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    tokens = dict.fromkeys(runs, 0)
    for turn in range(repeats + _WARM_UP):
        for name, run in runs.items():
            start = time.perf_counter()
            tokens[name] = run()
            if turn >= _WARM_UP:
                seconds[name].append(time.perf_counter() - start)
    return {name: (statistics.median(seconds[name]), tokens[name]) for name in runs}


def print_forced(bench: Bench, engine: Engine, batches: list[int], repeats: int) -> None:
    print(f"{'batch':>6} {'free ms/token':>14} {'forced ms/token':>16} {'ratio':>7}")
    for batch in batches:
        figures = medians(
            {
                "free": partial(bench.free, engine, batch),
                "forced": partial(bench.forced, engine, batch),
            },
            repeats,
        )
        free, forced = (1e3 * seconds / tokens for seconds, tokens in figures.values())
        print(f"{batch:>6} {free:>14.2f} {forced:>16.2f} {forced / free:>6.0%}")


def print_documents(
    bench: Bench, engines: dict[str, Engine], batches: list[int], repeats: int
) -> None:
    print(f"{'batch':>6} {'on doc/s':>9} {'off doc/s':>10} {'ratio':>7} {'tokens/doc':>11} forced")
    for batch in batches:
        before = engines["on"].stats()
        figures = medians(
            {name: partial(bench.documents, engine, batch) for name, engine in engines.items()},
            repeats,
        )
        after = engines["on"].stats()
        share = (after.forced_tokens - before.forced_tokens) / (
            after.generated_tokens - before.generated_tokens
        )
        on, off = (batch / figures[name][0] for name in ("on", "off"))
        length = figures["on"][1] / batch
        print(f"{batch:>6} {on:>9.2f} {off:>10.2f} {on / off:>6.2f}x {length:>11.1f} {share:>6.0%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=_DEMO_MODEL, help="a model folder or hub name")
    parser.add_argument("--batches", default="1,8,32", help="batch sizes, by commas")
    parser.add_argument("--dtype", default="auto", help="as in models.toml")
    parser.add_argument("--forced-tokens", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    batches = [int(size) for size in args.batches.split(",")]
    engines = {
        name: Engine.from_pretrained(
            args.model, EngineConfig(dtype=args.dtype, jump_forward=name == "on")
        )
        for name in ("on", "off")
    }
    bench = Bench(args.model, args.forced_tokens)
    print_forced(bench, engines["on"], batches, args.repeats)
    print_documents(bench, engines, batches, args.repeats)


if __name__ == "__main__":
    main()
