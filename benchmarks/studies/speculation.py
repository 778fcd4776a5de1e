"""The speedup from speculation: an engine with it against one without.

    python -m benchmarks.studies.speculation [--model FOLDER]

Both engines take turns at the same requests in one process. Every turn has new prompts and seeds,
so that no answer can be copied from an earlier turn. A ratio is the median over turns of the ratio
of times. Every answer must be the same with and without speculation.
"""

import json
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import AutoTokenizer

from benchmarks import command_line
from benchmarks.engine.records import SCHEMA, chat_prompt, schema_grammar
from benchmarks.engine.turns import DEMO_MODEL
from completions.contract.sampling import SamplingParams
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.core.request import Request
from workers.engine.engine import Engine
from workers.engine.stats import EngineStats

_NAMES = ("Margaret Hollingsworth", "Desmond Achebe", "Ingrid Solberg", "Tomasz Wielgosz")
_STREETS = ("Birchwood Avenue", "Harbour Street", "Old Mill Lane", "Station Road")
_TOWNS = ("Aberdeen", "Lowestoft", "Carlisle", "Swansea", "Galway")
_WARES = (
    "a cordless hedge trimmer",
    "two bags of slow-release lawn fertiliser",
    "an oak bookcase",
    "a galvanised watering can",
    "four brass door handles",
    "a folding garden bench",
)
_QUESTIONS = (
    "Explain how a bicycle stays upright.",
    "Write a short story about a lighthouse keeper.",
    "What should I consider before adopting a dog?",
    "Give me advice for my first job interview.",
    "Why do leaves change colour in autumn?",
    "Describe a quiet morning in a mountain village.",
    "How does a refrigerator keep food cold?",
    "What makes a good teacher?",
)

MakeRequests = Callable[[int, int], list[Request]]


class Workloads:
    """Requests by turn and batch, over one tokenizer."""

    def __init__(self, model: str) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(model)
        copied: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}
        copied |= {"required": ["text"], "additionalProperties": False}
        self._copied = schema_grammar(copied)
        self._record = schema_grammar(json.loads(SCHEMA))

    def extraction(self, turn: int, batch: int) -> list[Request]:
        """Requests for JSON that repeats a paragraph of the prompt word for word."""
        return [
            self._request(
                i,
                "Copy the message word for word into the field text of a JSON object."
                f"\n\nMessage: {_order(random.Random(f'{turn} {batch} {i}'))}",
                self._copied,
                temperature=0.0,
                max_tokens=192,
            )
            for i in range(batch)
        ]

    def chat(self, turn: int, batch: int) -> list[Request]:
        """Requests for free text."""
        return [
            self._request(
                i,
                _QUESTIONS[(turn * batch + i) % len(_QUESTIONS)],
                None,
                temperature=0.7,
                seed=turn * 1000 + i,
                max_tokens=64,
                ignore_eos=True,
            )
            for i in range(batch)
        ]

    def records(self, turn: int, batch: int) -> list[Request]:
        """Requests for documents that match ``record_schema.json``."""
        return [
            self._request(
                i,
                f"Write a JSON customer record for {_NAMES[turn % len(_NAMES)]}, number "
                f"{turn * 100 + i}.",
                self._record,
                temperature=0.7,
                seed=turn * 1000 + i,
                max_tokens=256,
            )
            for i in range(batch)
        ]

    def _request(self, number: int, content: str, grammar: str | None, **params: Any) -> Request:
        prompt = tuple(chat_prompt(self._tokenizer, content))
        return Request((prompt,), SamplingParams(**params), grammar, request_id=str(number))


def _order(draw: random.Random) -> str:
    name, neighbour = draw.sample(_NAMES, 2)
    wares = draw.sample(_WARES, 3)
    month, day = draw.choice(("March", "June", "October")), draw.randint(2, 20)
    return (
        f"Order {draw.randint(10_000, 99_999)} was placed by {name} of {draw.randint(2, 99)} "
        f"{draw.choice(_STREETS)}, {draw.choice(_TOWNS)}, on {day} {month} 2024. The parcel holds "
        f"{wares[0]}, {wares[1]} and {wares[2]}. It left the {draw.choice(_TOWNS)} warehouse on "
        f"{day + 2} {month} and was signed for by a neighbour, {neighbour}, on {day + 5} {month}."
    )


@dataclass
class Arm:
    """One engine's part of a table row."""

    engine: Engine
    seconds: list[float]
    cpu_seconds: list[float]
    before: EngineStats

    def run(self, requests: list[Request]) -> list[list[int]]:
        start, cpu_start = time.perf_counter(), time.process_time()
        completions = self.engine.generate(requests)
        self.seconds.append(time.perf_counter() - start)
        self.cpu_seconds.append(time.process_time() - cpu_start)
        for completion in completions:
            assert completion.error is None, completion.error
        return [completion.choices[0].token_ids for completion in completions]


def measure(engines: dict[str, Engine], make: MakeRequests, batch: int, turns: int) -> str:
    """Run a workload in turns. The first turn does not count. Returns a line of the table."""
    arms = {name: Arm(engine, [], [], engine.stats()) for name, engine in engines.items()}
    num_tokens = 0
    for turn in range(turns + 1):
        order = list(arms) if turn % 2 else list(reversed(arms))
        answers = {name: arms[name].run(make(turn, batch)) for name in order}
        assert answers["on"] == answers["off"], "speculation changed an answer"
        num_tokens += sum(map(len, answers["on"]))
    on, off = arms["on"], arms["off"]
    after = on.engine.stats()
    ratio, cpu_ratio = _ratio(on.seconds, off.seconds), _ratio(on.cpu_seconds, off.cpu_seconds)
    rates = [batch / statistics.median(arm.seconds[1:]) for arm in (on, off)]
    drafted = after.drafted_tokens - on.before.drafted_tokens
    accepted = after.accepted_tokens - on.before.accepted_tokens
    steps = [arm.engine.stats().steps - arm.before.steps for arm in (on, off)]
    return (
        f"{rates[0]:>8.3f} {rates[1]:>9.3f} {ratio:>6.2f}x {cpu_ratio:>6.2f}x "
        f"{num_tokens / batch / (turns + 1):>8.0f} {steps[0] / steps[1]:>7.0%} {drafted:>8} "
        f"{accepted:>9}"
    )


def _ratio(on: list[float], off: list[float]) -> float:
    """Return the median ratio of the times without and with speculation."""
    return statistics.median(b / a for a, b in zip(on[1:], off[1:], strict=True))


def main() -> None:
    parser = command_line.parser(__doc__, model=DEMO_MODEL, dtype="auto", turns=5)
    parser.add_argument("--threads", type=int, help="of each engine; fix it to compare CPU time")
    parser.add_argument("--only", default="", help="only the rows whose names contain this")
    args = parser.parse_args()
    engines = {
        name: build_engine(
            args.model,
            EngineConfig(dtype=args.dtype, num_threads=args.threads, speculation=name == "on"),
        )
        for name in ("on", "off")
    }
    workloads = Workloads(args.model)
    cases: list[tuple[str, MakeRequests, int]] = [
        ("extraction 1", workloads.extraction, 1),
        ("extraction 8", workloads.extraction, 8),
        ("chat 1", workloads.chat, 1),
        ("chat 8", workloads.chat, 8),
        ("records 1", workloads.records, 1),
        ("records 8", workloads.records, 8),
    ]
    print(
        f"{'':<14} {'on doc/s':>8} {'off doc/s':>9} {'ratio':>7} {'of CPU':>7} {'tok/doc':>8} "
        f"{'steps':>7} {'drafted':>8} {'accepted':>9}"
    )
    for name, make, batch in cases:
        if args.only in name:
            print(f"{name:<14}", measure(engines, make, batch, args.turns), flush=True)


if __name__ == "__main__":
    main()
