"""MaskBench's schemas, closed at a length limit: `python -m tests.conformance.closing DATA MODEL`.

DATA is the folder of tests.conformance.maskbench, of whose odd half some files are drawn; MODEL a
model's folder, of which only the tokenizer is read. Each schema's grammar is followed with tokens
drawn from its masks, as a model without any idea of JSON would write, under limits of 64, 128 and
256 tokens. Printed are, of the choices whose least length fits, how many ended whole, and how many
that said so were not: the latter must be 0, and the former all.
"""

import argparse
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from llguidance import LLMatcher
from tokenizers import Tokenizer

from completions.contract.grammar_ends import find_way
from completions.contract.llguidance_limits import ENGINE_LIMITS
from completions.grammars import Constraint, TokenSource, translate
from completions.grammars.compiler import Compiler
from completions.grammars.exceptions import GrammarError
from tests.conformance.maskbench import is_held_out
from workers.engine.exceptions import EngineError
from workers.engine.grammar.structured_output import GrammarMatcher, StructuredOutput
from workers.engine.text.detokenizer import Vocabulary

LIMITS = (64, 128, 256)
MAX_STEPS = 2000
PLAIN_SHARE = 0.7
"""How often a token is drawn among those of up to four bytes: the others are mostly text."""


@dataclass(slots=True)
class Tally:
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    """Of processor time, for closing alone."""
    tokens: int = 0
    lost: list[str] = field(default_factory=list)


def draw(matcher: GrammarMatcher, short: Sequence[int], random_: random.Random) -> int | None:
    """Return an allowed token; None if there is none."""
    mask = np.frombuffer(matcher.matcher.compute_bitmask(), dtype=np.uint8)
    allowed = np.unpackbits(mask, bitorder="little")
    if random_.random() < PLAIN_SHARE:
        some = [token_id for token_id in short if allowed[token_id]]
        if some:
            return random_.choice(some)
    ids = allowed.nonzero()[0]
    return int(random_.choice(ids)) if len(ids) else None


def follow(
    matcher: GrammarMatcher, limit: int, ends: frozenset[int], short: Sequence[int], seed: str
) -> tuple[list[int], float]:
    """Return tokens until the grammar or the limit ends them, and the seconds spent on closing."""
    random_, token_ids, seconds = random.Random(seed), list[int](), 0.0  # noqa: S311 - no secret
    while len(token_ids) < limit:
        token_id = matcher.forced
        if token_id is None:
            token_id = draw(matcher, short, random_)
        if token_id is None:
            break
        began = time.thread_time()
        token_id = matcher.review(token_id)
        seconds += time.thread_time() - began
        if token_id in ends:
            break
        token_ids.append(token_id)
        began = time.thread_time()
        is_complete = matcher.consume(token_id)
        seconds += time.thread_time() - began
        if is_complete:
            break
    return token_ids, seconds


def check(
    name: str, grammar: str, engine: StructuredOutput, limit: int, tally: Tally, short: list[int]
) -> None:
    result = engine.compile_now(grammar, 1, [limit])
    if isinstance(result, EngineError):
        tally.counts["not compiled"] += 1
        return
    [matcher] = result
    tokens = engine.end_tokens
    way = find_way(matcher.matcher, tokens, tokens.read_literals(grammar), MAX_STEPS, limit)
    if way is None or len(way) > limit:
        tally.counts["least length unknown or above the limit"] += 1
        return
    ends = frozenset(tokens.end_ids)
    token_ids, seconds = follow(matcher, limit, ends, short, f"{name} {limit}")
    again = LLMatcher(engine.tokenizer, grammar, log_level=0, limits=ENGINE_LIMITS)
    is_whole = again.try_consume_tokens(token_ids) == len(token_ids) and again.is_accepting()
    says_so = matcher.is_accepting
    tally.counts["whole" if is_whole else "cut"] += 1
    tally.counts["closed and invalid"] += says_so and not is_whole
    tally.counts["at the limit"] += matcher.closed_at is not None
    tally.seconds += seconds
    tally.tokens += len(token_ids)
    if not is_whole:
        tally.lost.append(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--files", type=int, default=300)
    parser.add_argument("--only", default="", help="a part of the names of files")
    options = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    vocabulary = Vocabulary(tokenizer, tokenizer.get_vocab_size())
    end_id = json.loads((options.model / "config.json").read_text())["eos_token_id"]
    engine = StructuredOutput(vocabulary, frozenset([end_id]), num_threads=1)
    source = TokenSource(str(options.model / "tokenizer.json"), vocabulary.size, (end_id,))
    short = [id for id, text in enumerate(vocabulary.token_bytes) if 0 < len(text) <= 4]
    short = [id for id in short if not vocabulary.token_bytes[id].isalpha()]
    compiler = Compiler(source)
    files = sorted(path for path in options.data.glob("*.json") if is_held_out(path))
    files = [path for path in files if options.only in path.name]
    chosen = random.Random(1).sample(files, min(options.files, len(files)))  # noqa: S311
    grammars: dict[str, str] = {}
    for path in chosen:
        schema = json.loads(path.read_text())["schema"]
        try:
            grammars[path.name] = translate(
                Constraint("json_schema", schema, whitespace="compact"), compiler
            ).grammar
        except GrammarError:
            continue
    print(f"{len(grammars)} of {len(chosen)} schemas are accepted")
    for limit in LIMITS:
        tally = Tally()
        for name, grammar in grammars.items():
            check(name, grammar, engine, limit, tally, short)
        per_token = tally.seconds / max(1, tally.tokens) * 1e3
        print(limit, dict(tally.counts), f"{per_token:.2f} ms a token", *tally.lost[:20])


if __name__ == "__main__":
    main()
