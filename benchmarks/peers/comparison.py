"""The turns of all contenders on one workload, and their table."""

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, Literal

from jsonschema import Draft202012Validator
from transformers import AutoConfig

from benchmarks.engine.records import SCHEMA, RecordPrompts
from benchmarks.peers.engines import OURS
from benchmarks.peers.process import Process
from benchmarks.peers.protocol import Answer, Job
from benchmarks.peers.workloads import REGEX, Shape, Workload

Clock = Literal["wall", "processor"]
_DOCUMENT_TEMPERATURE = 0.7


@dataclass(slots=True)
class Row:
    """The rates of every turn by contender; empty where a contender cannot do the job."""

    shape: Shape
    rates: dict[str, list[float]]

    def median(self, name: str) -> float | None:
        rates = self.rates[name]
        return statistics.median(rates) if rates else None


@dataclass(slots=True)
class Table:
    """The rates of one workload."""

    workload: Workload
    rows: list[Row] = field(default_factory=list)

    def print(self) -> None:
        """Print medians, and for each peer how many times its rate is Quire's."""
        names = list(self.rows[0].rates)
        print(f"\n{self.workload.title}, {self.workload.unit}\n")
        print("| requests x tokens | " + " | ".join(names) + " |")
        print("|---" * (len(names) + 1) + "|")
        for row in self.rows:
            cells = " | ".join(_cell(row, name) for name in names)
            print(f"| {row.shape} | {cells} |", flush=True)

    def ratios(self) -> dict[str, float]:
        """Return Quire's median divided by each peer's."""
        return {
            f"{self.workload.name}, {row.shape}: quire / {name}": ours / rate
            for row in self.rows
            for name in row.rates
            if name != OURS and (ours := row.median(OURS)) and (rate := row.median(name))
        }

    def to_json(self) -> dict[str, Any]:
        rows = [
            {**asdict(row.shape), "turns": row.rates, "median": _medians(row)} for row in self.rows
        ]
        return {"name": self.workload.name, "unit": self.workload.unit, "rows": rows}


def _medians(row: Row) -> dict[str, float | None]:
    return {name: row.median(name) for name in row.rates}


def _cell(row: Row, name: str) -> str:
    rate, ours = row.median(name), row.median(OURS)
    if rate is None or ours is None:
        return "-"
    text = f"{rate:.2f}" if rate < 10 else f"{rate:,.0f}"
    return text if name == OURS else f"{text} ({ours / rate:.2f}x)"


class Comparison:
    """Gives every contender the same jobs in turn. Each turn has new prompts, so that no contender
    answers from a cache."""

    def __init__(
        self,
        processes: Sequence[Process],
        constraining: set[str],
        model: Path,
        turns: int,
        clock: Clock = "wall",
    ) -> None:
        self._processes = processes
        self._constraining = constraining
        self._model = model
        self._vocab_size: int = AutoConfig.from_pretrained(model).vocab_size
        self._turns = turns
        self._clock = clock
        self._seeds = count(step=2)
        self._validator = Draft202012Validator(json.loads(SCHEMA))

    def measure(self, workload: Workload, batches: Sequence[int] = ()) -> Table:
        """Measure the shapes of a workload, or those of some batch sizes only. Before that, every
        contender runs the first shape once, which does not count."""
        shapes = [shape for shape in workload.shapes if not batches or shape.batch in batches]
        able = [
            process
            for process in self._processes
            if workload.constraint is None or process.name in self._constraining
        ]
        table = Table(workload)
        for number, shape in enumerate(shapes):
            if number == 0:
                self._turn(workload, shape, able)
            rates: dict[str, list[float]] = {process.name: [] for process in self._processes}
            for _ in range(self._turns):
                for name, rate in self._turn(workload, shape, able).items():
                    rates[name].append(rate)
            table.rows.append(Row(shape, rates))
        return table

    @cached_property
    def _records(self) -> RecordPrompts:
        return RecordPrompts(self._model)

    def _turn(
        self, workload: Workload, shape: Shape, processes: Sequence[Process]
    ) -> dict[str, float]:
        """Run one job in each process, and return its rate."""
        job, amount = self._job(workload, shape), self._amount(workload, shape)
        rates = {}
        for process in processes:
            answer = process.run(job)
            seconds = answer.seconds if self._clock == "wall" else answer.processor_seconds
            rates[process.name] = amount(answer) / seconds
        return rates

    def _job(self, workload: Workload, shape: Shape) -> Job:
        if workload.constraint == "schema":
            prompts = self._records.take(shape.batch)
            return Job(prompts, shape.new_tokens, None, SCHEMA, _DOCUMENT_TEMPERATURE)
        prompts = shape.prompts(self._vocab_size, next(self._seeds))
        return Job(prompts, shape.new_tokens, REGEX if workload.constraint == "regex" else None)

    def _amount(self, workload: Workload, shape: Shape) -> Callable[[Answer], float]:
        """Return what counts of an answer, in the workload's unit."""
        if workload.unit == "documents/s":
            return lambda answer: sum(map(self._is_complete, answer.texts))
        if workload.unit == "prompt tokens/s":
            return lambda _: shape.batch * shape.prompt_tokens
        return lambda answer: answer.tokens

    def _is_complete(self, text: str) -> bool:
        """Return whether a text is a document that matches the schema."""
        try:
            return bool(self._validator.is_valid(json.loads(text)))
        except json.JSONDecodeError:
            return False
