"""What a constraint costs: judging it, compiling it, and the mask of each token.

    python -m benchmarks.grammars [--model FOLDER]

Follows texts that fit, token by token; before each token the mask over the whole vocabulary is
computed. Every pass has a matcher of its own, so that nothing is remembered. Figures are processor
time of the one thread that does it all.
"""

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from llguidance import LLMatcher
from tokenizers import Tokenizer

from completions.contract.llguidance_limits import JUDGE_LIMITS
from completions.grammars import Constraint, TokenSource, translate
from completions.grammars import tokens as model_tokens
from completions.grammars.compiler import Compiler

_DEMO_MODEL = "var/models/smollm2-135m-instruct"
_SCHEMA = Path(__file__).with_name("record_schema.json")
_JSON = r"""
root ::= object | array
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws (pair (ws "," ws pair)*)? ws "}"
pair ::= string ws ":" ws value
array ::= "[" ws (value (ws "," ws value)*)? ws "]"
string ::= "\"" characters "\""
characters ::= "" | [^"\\\x00-\x1F] characters | "\\" escape characters
escape ::= ["\\/bfnrt] | "u" [0-9A-Fa-f] [0-9A-Fa-f] [0-9A-Fa-f] [0-9A-Fa-f]
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [+-]? [0-9]+)?
ws ::= [ \n\t]*
"""
_EXPRESSION = r"""
root ::= (expr "=" ws term "\n")+
expr ::= term ([-+*/] term)*
term ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num ::= [0-9]+ ws
ws ::= [ \t\n]*
"""
_REGEX = r"[A-Z][a-z]+ [A-Z][a-z]+ <[a-z.]+@[a-z]+\.(com|org)>, [0-9]{4}-[0-9]{2}-[0-9]{2}"
_DOCUMENT = {
    "title": "The analytical engine", "year": 1843, "ratio": -2.5e-3, "tags": ["notes", "été", ""],
    "author": {"name": "Ada King", "born": {"year": 1815, "place": "London"}, "alive": False},
    "pages": [[1, 2, 3], [], {"quote": "It \"weaves\" algebraic patterns\n", "next": None}],
}  # fmt: skip
_RECORD = {
    "id": 17, "name": "Grace Hopper", "status": "active", "priority": "high",
    "email": "grace@example.org", "is_verified": True,
    "address": {"street_name": "Mill Lane", "postal_code": "10115", "country_code": "DE"},
    "preferred_colors": ["red", "green", "black"],
}  # fmt: skip


class Case(NamedTuple):
    name: str
    constraint: Constraint
    texts: Sequence[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=_DEMO_MODEL)
    parser.add_argument("--passes", type=int, default=20)
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(f"{arguments.model}/tokenizer.json")
    size = json.loads(Path(arguments.model, "config.json").read_text())["vocab_size"]
    tokens = TokenSource(f"{arguments.model}/tokenizer.json", size, (2,))
    compiler = Compiler(tokens)
    model_tokens.load(tokens)  # not part of any figure
    print("| constraint | tokens | judged ms | compiled ms | mask us: median | p99 |")
    print("|---|---|---|---|---|---|")
    for case in _cases():
        print(_row(case, compiler, tokenizer, arguments.passes))


def _cases() -> list[Case]:
    spaced = json.dumps(_DOCUMENT, indent=1)
    schema = json.loads(_SCHEMA.read_text())
    record = json.dumps(_RECORD, separators=(",", ":"))
    return [
        Case("JSON as EBNF", Constraint("ebnf", _JSON), [spaced, json.dumps(_DOCUMENT)]),
        Case("expressions as EBNF", Constraint("ebnf", _EXPRESSION), ["a1 *(b +12 )= 7\n" * 3]),
        Case("regex", Constraint("regex", _REGEX), ["Ada Lovelace <ada@example.org>, 1843-09-01"]),
        Case("record schema", Constraint("json_schema", schema), [record]),
    ]


def _row(case: Case, compiler: Compiler, tokenizer: Tokenizer, passes: int) -> str:
    judged, compiled, masks = [], [], []
    documents = [tokenizer.encode(text, add_special_tokens=False).ids for text in case.texts]
    tokens = model_tokens.load(compiler.tokens)
    for _ in range(passes):
        began = time.thread_time()
        grammar = translate(case.constraint, compiler).grammar
        judged.append(time.thread_time() - began)
        for document in documents:
            began = time.thread_time()
            matcher = LLMatcher(tokens, grammar, log_level=0, limits=JUDGE_LIMITS)
            compiled.append(time.thread_time() - began)
            masks += _mask_seconds(matcher, document)
    masks.sort()
    return (
        f"| {case.name} | {sum(map(len, documents))} | {1e3 * statistics.median(judged):.1f} "
        f"| {1e3 * statistics.median(compiled):.1f} | {1e6 * statistics.median(masks):.1f} "
        f"| {1e6 * masks[len(masks) * 99 // 100]:.0f} |"
    )


def _mask_seconds(matcher: LLMatcher, document: list[int]) -> list[float]:
    """The time of each token of a document that fits."""
    found = []
    for token in document:
        began = time.thread_time()
        matcher.compute_bitmask()
        found.append(time.thread_time() - began)
        assert matcher.consume_token(token), matcher.get_error()
    assert matcher.is_accepting()
    return found


if __name__ == "__main__":
    main()
