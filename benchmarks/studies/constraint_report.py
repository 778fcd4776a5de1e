"""What `meta_info.constraint` costs a request that asks for it, and one that does not.

    python -m benchmarks.studies.constraint_report [--model FOLDER]

One engine runs the same constrained requests with and without the report, in turns; the first of
the two changes from turn to turn. Figures are processor time. A cost is the median over turns of
the ratio within a turn. The last column is what steps spend where no request asks, as a share of
the plain run.
"""

import json
import statistics
import time
from collections.abc import Sequence

import torch

from benchmarks import command_line
from benchmarks.command_line import print_columns
from benchmarks.engine.records import SCHEMA, RecordPrompts, schema_grammar
from benchmarks.engine.turns import ASCII_TEXT, DEMO_MODEL
from completions.contract.sampling import SamplingParams
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.core.request import Request
from workers.engine.engine import Engine
from workers.engine.grammar.effect import removals
from workers.engine.grammar.mask import GrammarMask

_GRAMMARS = {"text": ASCII_TEXT, "record": schema_grammar(json.loads(SCHEMA))}


def run(
    engine: Engine, prompts: Sequence[list[int]], grammar: str, tokens: int, report: bool
) -> tuple[float, int]:
    """Processor seconds, and steps, of one request for each prompt."""
    params = [
        SamplingParams(max_tokens=tokens, temperature=0.7, seed=seed)
        for seed in range(len(prompts))
    ]
    requests = [
        Request(
            (tuple(prompt),),
            params[i],
            grammar,
            report_constraint=report,
            request_id=str(i),
        )
        for i, prompt in enumerate(prompts)
    ]
    before, began = engine.stats().steps, time.process_time()
    for completion in engine.generate(requests):
        if completion.error is not None:
            raise completion.error
        assert (completion.choices[0].effect is not None) is report
    return time.process_time() - began, engine.stats().steps - before


def idle_seconds(rows: int, vocabulary: int) -> float:
    """Processor seconds of a step in which no row reports."""
    logits = torch.zeros(rows, vocabulary)
    mask = GrammarMask(list(range(rows)), torch.zeros(rows, -(-vocabulary // 32)).int().numpy(), {})
    reporting = [None] * rows
    times = 1_000
    began = time.process_time()
    for _ in range(times):
        removals(logits, mask, (i for i, each in enumerate(reporting) if each is not None))
    return (time.process_time() - began) / times


def main() -> None:
    parser = command_line.parser(
        __doc__, model=DEMO_MODEL, batches=[1, 8, 32], dtype="auto", new_tokens=64, turns=9
    )
    args = parser.parse_args()
    config = EngineConfig(
        dtype=args.dtype, max_num_seqs=max(args.batches), num_threads=1, speculation=False
    )
    engine = build_engine(args.model, config)
    prompts = RecordPrompts(args.model)
    print_columns("grammar", "batch", "plain s", "report s", "cost", "not asked")
    for name, grammar in _GRAMMARS.items():
        for batch in args.batches:
            asked = prompts.take(batch)
            seconds: dict[bool, list[float]] = {False: [], True: []}
            for turn in range(args.turns + 1):
                for report in (turn % 2 == 0, turn % 2 == 1):
                    spent, steps = run(engine, asked, grammar, args.new_tokens, report)
                    if turn:
                        seconds[report].append(spent)
            ratios = [b / a for a, b in zip(seconds[False], seconds[True], strict=True)]
            plain, reported = (statistics.median(seconds[each]) for each in (False, True))
            idle = steps * idle_seconds(batch, engine.vocab_size) / plain
            print_columns(
                name,
                batch,
                f"{plain:.3f}",
                f"{reported:.3f}",
                f"{statistics.median(ratios) - 1:+.1%}",
                f"{idle:.3%}",
            )
    engine.stop()


if __name__ == "__main__":
    main()
