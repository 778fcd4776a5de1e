"""MaskBench's schemas, closed at a length limit: `python -m tests.conformance.closing DATA MODEL`.

DATA is the folder of tests.conformance.maskbench, whose odd half is shuffled, always alike; of it,
`--skip` and `--files` choose a part. MODEL is a model's folder, of which only the tokenizer is
read. Each schema's grammar is followed with tokens drawn from its masks, as a model without any
idea of JSON would write, under limits of 64, 128 and 256 tokens. Printed are, of the choices for
which an end within the limit is known, how many ended whole, and how many that said so were not:
the latter must be 0, and the former all.
"""

import argparse
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from llguidance import LLMatcher
from numpy.typing import NDArray
from tokenizers import Tokenizer

from completions.contract.llguidance_limits import ENGINE_LIMITS
from completions.grammars import Constraint, TokenSource, translate
from completions.grammars.compiler import Compiler
from completions.grammars.exceptions import GrammarError
from tests.conformance.maskbench import is_held_out
from workers.engine.exceptions import EngineError
from workers.engine.grammar.structured_output import GrammarMatcher, StructuredOutput
from workers.engine.text.detokenizer import Vocabulary

LIMITS = (64, 128, 256)
PLAIN_SHARE = 0.7
"""How often a token is drawn among those of up to four bytes: the others are mostly text."""


@dataclass(slots=True)
class Tally:
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    """Of processor time, for closing alone."""
    tokens: int = 0
    names: list[str] = field(default_factory=list)
    """What did not end whole, and why."""


def draw(matcher: GrammarMatcher, short: NDArray[np.intp], random_: random.Random) -> int | None:
    """Return an allowed token; None if there is none."""
    mask = np.frombuffer(matcher.matcher.compute_bitmask(), dtype=np.uint8)
    allowed = np.unpackbits(mask, bitorder="little")
    ids = short[allowed[short] == 1] if random_.random() < PLAIN_SHARE else short[:0]
    if not len(ids):
        ids = allowed.nonzero()[0]
    return int(random_.choice(ids)) if len(ids) else None


def follow(
    matcher: GrammarMatcher,
    limit: int,
    ends: frozenset[int],
    short: NDArray[np.intp],
    seed: str,
    tally: Tally,
) -> list[int]:
    """Return tokens until the grammar or the limit ends them. Raises EngineError."""
    random_, token_ids = random.Random(seed), list[int]()  # noqa: S311 - no secret
    while len(token_ids) < limit:
        token_id = matcher.forced
        if token_id is None:
            token_id = draw(matcher, short, random_)
        if token_id is None:
            break
        began = time.thread_time()
        token_id = matcher.review(token_id)
        tally.seconds += time.thread_time() - began
        if token_id in ends:
            break
        token_ids.append(token_id)
        tally.tokens += 1
        began = time.thread_time()
        is_complete = matcher.consume(token_id)
        tally.seconds += time.thread_time() - began
        if is_complete:
            break
    return token_ids


def check(
    name: str,
    grammar: str,
    engine: StructuredOutput,
    limit: int,
    tally: Tally,
    short: NDArray[np.intp],
) -> None:
    result = engine.compile_now(grammar, 1, [limit])
    if isinstance(result, EngineError):
        tally.counts["not compiled"] += 1
        return
    [matcher] = result
    assert matcher.closing is not None
    way = matcher.closing.plan.way
    if way is None or len(way) > limit:
        kind = "no end known" if way is None else "known ends above the limit"
        tally.counts[kind] += 1
        tally.names.append(f"{kind}: {name}")
        return
    try:
        token_ids = follow(
            matcher, limit, frozenset(engine.end_tokens.end_ids), short, f"{name} {limit}", tally
        )
    except EngineError:
        tally.counts["failed, since it took too long"] += 1
        tally.names.append(f"failed: {name}")
        return
    again = LLMatcher(engine.tokenizer, grammar, log_level=0, limits=ENGINE_LIMITS)
    is_whole = again.try_consume_tokens(token_ids) == len(token_ids) and again.is_accepting()
    says_so = matcher.is_accepting
    tally.counts["whole" if is_whole else "cut"] += 1
    tally.counts["closed and invalid"] += says_so and not is_whole
    tally.counts["closed by the limit"] += matcher.closed_at is not None
    if not is_whole:
        tally.names.append(f"cut: {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--files", type=int, default=300)
    parser.add_argument("--skip", type=int, default=0, help="files of an earlier part")
    parser.add_argument("--only", default="", help="a part of the names of files")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    vocabulary = Vocabulary(tokenizer, tokenizer.get_vocab_size())
    end_id = json.loads((options.model / "config.json").read_text())["eos_token_id"]
    engine = StructuredOutput(vocabulary, frozenset([end_id]), num_threads=1)
    source = TokenSource(str(options.model / "tokenizer.json"), vocabulary.size, (end_id,))
    texts = vocabulary.token_bytes
    short = np.array(
        [i for i, each in enumerate(texts) if 0 < len(each) <= 4 and not each.isalpha()]
    )
    compiler = Compiler(source)
    files = sorted(path for path in options.data.glob("*.json") if is_held_out(path))
    random.Random(1).shuffle(files)  # noqa: S311
    files = [path for path in files if options.only in path.name][options.skip :][: options.files]
    tallies = {limit: Tally() for limit in LIMITS}
    num_accepted = 0
    for path in files:
        schema = json.loads(path.read_text())["schema"]
        constraint = Constraint("json_schema", schema, whitespace="compact")
        try:
            grammar = translate(constraint, compiler).grammar
        except GrammarError:
            continue
        num_accepted += 1
        for limit, tally in tallies.items():
            check(path.name, grammar, engine, limit, tally, short)
    print(f"{num_accepted} of {len(files)} schemas are accepted")
    for limit, tally in tallies.items():
        per_token = tally.seconds / max(1, tally.tokens) * 1e3
        print(limit, dict(tally.counts), f"{per_token:.2f} ms a token", *tally.names, sep="\n  ")


if __name__ == "__main__":
    main()
