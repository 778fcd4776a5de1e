"""Streams under a constraint beside free ones: how much longer a token takes.

    python -m benchmarks.studies.constrained_streams [--model FOLDER]

One engine runs as many streams of each kind, in turns; the order changes from turn to turn. All
draw at temperature 1 from random prompts. A ratio is the median over turns of the ratio within a
turn, so that other load disturbs it less; forced tokens make a constrained token cheaper, so the
ratio of steps is there too, and that of processor time, which load disturbs least with one thread.
"""

import statistics
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from benchmarks import command_line
from benchmarks.command_line import print_columns
from benchmarks.engine.turns import ASCII_TEXT, DEMO_MODEL, Prompts, generate, random_prompts
from completions.contract.sampling import SamplingParams
from completions.grammars import Constraint, translate
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.engine import Engine

_SHORT, _LONG = 9, 60
_MANY = 1_000
"""Items of an array that no stream completes."""


class Run(NamedTuple):
    """Seconds of one turn."""

    token: float
    step: float
    processor: float
    """Processor seconds of all threads per step."""


def _strings(most: int) -> str:
    """Return a grammar of many JSON strings of up to `most` characters."""
    items = {"type": "string", "maxLength": most}
    schema = {"type": "array", "items": items, "minItems": _MANY}
    return translate(Constraint("json_schema", schema)).grammar


_GRAMMARS: Mapping[str, str | None] = {
    "free": None,
    "ASCII": ASCII_TEXT,
    f"strings {_SHORT}": _strings(_SHORT),
    f"strings {_LONG}": _strings(_LONG),
}


def run(engine: Engine, prompts: Prompts, grammar: str | None, tokens: int) -> Run:
    free: dict[str, Any] = {"min_tokens": tokens} if grammar is None else {}
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=1.0, seed=1, **free)
    before, began, used = engine.stats(), time.perf_counter(), time.process_time()
    generate(engine, prompts, params, grammar)
    seconds, used, after = time.perf_counter() - began, time.process_time() - used, engine.stats()
    made, steps = after.generated_tokens - before.generated_tokens, after.steps - before.steps
    return Run(seconds / made, seconds / steps, used / steps)


def main() -> None:
    args = command_line.parser(
        __doc__, model=DEMO_MODEL, streams=16, threads=2, new_tokens=48, turns=9
    ).parse_args()
    config = EngineConfig(max_num_seqs=args.streams, num_threads=args.threads, speculation=False)
    engine = build_engine(args.model, config)
    prompts = random_prompts(engine.vocab_size, args.streams, 32, seed=1)
    turns: list[dict[str, Run]] = []
    for turn in range(args.turns + 1):
        names = list(_GRAMMARS)[:: 1 if turn % 2 else -1]
        found = {name: run(engine, prompts, _GRAMMARS[name], args.new_tokens) for name in names}
        if turn:
            turns.append(found)
    engine.stop()
    print_columns("streams", "step ms", "step", "token", "processor")
    for name in _GRAMMARS:
        milliseconds = 1e3 * statistics.median(turn[name].step for turn in turns)
        pairs = [(turn[name], turn["free"]) for turn in turns]
        ratios = (
            statistics.median(one.step / free.step for one, free in pairs),
            statistics.median(one.token / free.token for one, free in pairs),
            statistics.median(one.processor / free.processor for one, free in pairs),
        )
        print_columns(name, f"{milliseconds:.1f}", *(f"{ratio:.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
