"""The cost of tokens that a grammar forces, and the time that jump-forward saves.

    python -m benchmarks.studies.jump_forward [--model FOLDER]

Two engines, with and without jump-forward, take turns at the same requests. The first table
compares a forced token with a free one, in texts of the same length. The second counts whole
documents under a JSON schema. Figures are medians.
"""

import json
from functools import partial

from benchmarks import command_line
from benchmarks.engine.records import SCHEMA, RecordPrompts, schema_grammar
from benchmarks.engine.turns import DEMO_MODEL, exactly, generate, medians
from completions.contract.sampling import SamplingParams
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.engine import Engine

_TEXT = (
    "The engine appends what the grammar leaves no choice about, and the next step computes it. "
)


def print_forced(
    engine: Engine, prompts: RecordPrompts, batch: int, num_forced: int, repeats: int
) -> None:
    ids = prompts.encode(_TEXT * (num_forced // 10 + 1))[:num_forced]
    literal = json.dumps(f"{prompts.tokenizer.decode(ids)}:", ensure_ascii=False)
    grammar = f"start: /[a-z]/ {literal} /[0-9]{{2}}/"
    greedy = SamplingParams(max_tokens=2 * num_forced, temperature=0.0)
    asked, free_tokens = prompts.take(batch), num_forced + 4
    forced_tokens = sum(
        len(each.choices[0].token_ids) for each in generate(engine, asked, greedy, grammar)
    )
    seconds = medians(
        {
            "free": lambda: generate(engine, asked, exactly(free_tokens)),
            "forced": lambda: generate(engine, asked, greedy, grammar),
        },
        repeats,
    )
    free = 1e3 * seconds["free"] / (batch * free_tokens)
    forced = 1e3 * seconds["forced"] / forced_tokens
    print(f"{batch:>6} {free:>14.2f} {forced:>16.2f} {forced / free:>6.0%}", flush=True)


def print_documents(
    engines: dict[str, Engine], prompts: RecordPrompts, batch: int, repeats: int
) -> None:
    drawn = SamplingParams(max_tokens=256, temperature=0.7)
    run = partial(
        generate,
        prompts=prompts.take(batch),
        params=drawn,
        grammar=schema_grammar(json.loads(SCHEMA)),
    )
    before = engines["on"].stats()
    seconds = medians({name: partial(run, engine) for name, engine in engines.items()}, repeats)
    after = engines["on"].stats()
    generated = after.generated_tokens - before.generated_tokens
    share = (after.forced_tokens - before.forced_tokens) / generated
    on, off = batch / seconds["on"], batch / seconds["off"]
    length = generated / (batch * (repeats + 1))
    print(f"{batch:>6} {on:>9.2f} {off:>10.2f} {on / off:>6.2f}x {length:>11.1f} {share:>6.0%}")


def main() -> None:
    parser = command_line.parser(
        __doc__, model=DEMO_MODEL, batches=[1, 8, 32], dtype="auto", forced_tokens=200, repeats=3
    )
    args = parser.parse_args()
    engines = {
        name: build_engine(args.model, EngineConfig(dtype=args.dtype, jump_forward=name == "on"))
        for name in ("on", "off")
    }
    prompts = RecordPrompts(args.model)
    print(f"{'batch':>6} {'free ms/token':>14} {'forced ms/token':>16} {'ratio':>7}")
    for batch in args.batches:
        print_forced(engines["on"], prompts, batch, args.forced_tokens, args.repeats)
    print(f"{'batch':>6} {'on doc/s':>9} {'off doc/s':>10} {'ratio':>7} {'tokens/doc':>11} forced")
    for batch in args.batches:
        print_documents(engines, prompts, batch, args.repeats)


if __name__ == "__main__":
    main()
