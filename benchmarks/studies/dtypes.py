"""Compare dtypes: tokens per second by batch size. The engines take turns in one process.

    python -m benchmarks.studies.dtypes [--model FOLDER] [--dtypes int8,bfloat16,float32]

Every engine generates greedily from random prompts to the same length; the table gives medians.
``--passage FILE`` adds the loss of each engine on a text.
"""

import os
from functools import partial
from itertools import count
from pathlib import Path

import torch
from tokenizers import Tokenizer

from benchmarks import command_line
from benchmarks.command_line import print_columns
from benchmarks.engine.turns import DEMO_MODEL, exactly, generate, medians, random_prompts
from completions.contract.job_request import LogprobParams
from completions.contract.sampling import SamplingParams
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.core.request import Request
from workers.engine.engine import Engine


def loss(engine: Engine, prompt: tuple[int, ...]) -> float:
    """Return the loss of a text in nats per token."""
    scores = (LogprobParams(logprob_start_len=0),)
    params = SamplingParams(max_tokens=1, temperature=0.0)
    [done] = engine.generate([Request((prompt,), params, logprobs=scores, request_id="passage")])
    scored = done.choices[0].prompt_logprobs
    assert scored is not None, done.error
    return -float(scored.chosen[1 : len(prompt)].mean())


def main() -> None:
    parser = command_line.parser(
        __doc__,
        model=DEMO_MODEL,
        dtypes="int8,bfloat16,float32",
        batches=[1, 8, 32, 64],
        prompt_tokens=64,
        new_tokens=64,
        repeats=3,
        passage_tokens=1024,
    )
    parser.add_argument("--passage", type=Path, action="append", default=[], help="a text file")
    args = parser.parse_args()
    print(f"{Path(args.model).name}, {os.cpu_count()} cores, torch {torch.__version__}", flush=True)
    seats = max(args.batches, default=1)
    engines = {
        dtype: build_engine(
            args.model,
            EngineConfig(device="cpu", dtype=dtype, max_num_seqs=seats, kv_cache_bytes=2**29),
        )
        for dtype in args.dtypes.split(",")
    }
    print_columns("tokens/s", *engines, width=10)

    def run(engine: Engine, batch: int, seeds: "count[int]") -> None:
        prompts = random_prompts(engine.vocab_size, batch, args.prompt_tokens, next(seeds))
        generate(engine, prompts, exactly(args.new_tokens))

    for batch in args.batches:
        seconds = medians(
            {dtype: partial(run, engine, batch, count()) for dtype, engine in engines.items()},
            args.repeats,
        )
        rates = [f"{batch * args.new_tokens / taken:.1f}" for taken in seconds.values()]
        print_columns(batch, *rates, width=10)
    for passage in args.passage:
        tokenizer = Tokenizer.from_file(str(Path(args.model) / "tokenizer.json"))
        prompt = tuple(tokenizer.encode(passage.read_text("utf-8")).ids[: args.passage_tokens])
        for dtype, engine in engines.items():
            nats = loss(engine, prompt)
            print(f"{passage.name}, {len(prompt)} tokens, {dtype}: {nats:.4f} nats per token")


if __name__ == "__main__":
    main()
