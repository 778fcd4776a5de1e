"""The whole corpus through the engine with a real model: `python -m tests.conformance.campaign`.

Every text that the model ended itself must be an instance of its schema. Those that are not are
printed, and the exit status is then 1.
"""

import argparse
import sys
import time
from pathlib import Path

from tokenizers import Tokenizer

from completions.grammars import TokenSource
from completions.grammars.compiler import Compiler
from tests.conformance.check import write
from tests.conformance.corpus import everything
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig

MODEL = Path("var/models/smollm2-135m-instruct")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=160)
    options = parser.parse_args()
    engine = build_engine(options.model, EngineConfig(max_num_seqs=options.batch))
    ends = tuple(sorted(engine.eos_token_ids))
    words = TokenSource(str(options.model / "tokenizer.json"), engine.vocab_size, ends)
    tokenizer = Tokenizer.from_file(words.tokenizer_file)
    began = time.monotonic()
    outcomes = list(write(engine, tokenizer, Compiler(words), everything(), options.max_tokens))
    seconds = time.monotonic() - began
    wrong = [outcome for outcome in outcomes if outcome.fault]
    for outcome in wrong:
        print(f"{outcome.schema}\n    {outcome.text}\n    {outcome.fault}")
    finished = sum(outcome.finished for outcome in outcomes)
    stats = engine.stats()
    print(
        f"{len(outcomes)} schemas, {finished} texts finished, {len(wrong)} of them wrong; "
        f"{stats.generated_tokens} tokens in {seconds:.0f} s, {stats.forced_tokens} of them forced"
    )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
