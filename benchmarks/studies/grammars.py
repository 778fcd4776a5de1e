"""The cost of a constraint: of judging it, of compiling it, and of the mask of each token.

    python -m benchmarks.studies.grammars [--model FOLDER]

Walks matching texts token by token; before each token, the mask over the whole vocabulary is
computed. Every pass has its own matcher, so that nothing stays cached. Figures are CPU time of one
thread. A mask counts with its fastest pass, the one that other load disturbs least.
"""

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from llguidance import LLMatcher
from tokenizers import Tokenizer

from benchmarks import command_line
from benchmarks.engine.records import SCHEMA
from benchmarks.engine.turns import DEMO_MODEL
from completions.contract.llguidance_limits import VALIDATION_LIMITS
from completions.grammars import Constraint, TokenSource, translate
from completions.grammars import tokens as model_tokens
from completions.grammars.compiler import Compiler

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
    "title": "The analytical engine",
    "year": 1843,
    "ratio": -2.5e-3,
    "tags": ["notes", "été", ""],
    "author": {"name": "Ada King", "born": {"year": 1815, "place": "London"}, "alive": False},
    "pages": [[1, 2, 3], [], {"quote": 'It "weaves" algebraic patterns\n', "next": None}],
}
_RECORD = {
    "id": 17,
    "name": "Grace Hopper",
    "status": "active",
    "priority": "high",
    "email": "grace@example.org",
    "is_verified": True,
    "address": {"street_name": "Mill Lane", "postal_code": "10115", "country_code": "DE"},
    "preferred_colors": ["red", "green", "black"],
}
_SHORT_LENGTHS = {"country": 2, "postcode": 9, "city": 20, "street": 40, "name": 60}
"""Values of `maxLength`, as an address has them."""
_SHORT_TEXTS = {
    "country": "DE",
    "postcode": "10115",
    "city": "Frankfurt am Main",
    "street": "Grosse Eschenheimer Strasse 14",
    "name": "Annemarie von Schwarzenbach",
}
_WORDS = "the quick brown fox jumps over the lazy dog and runs away into the deep dark forest " * 5
_COUNTED = {
    "[a-z ]+": _WORDS[:400],
    "[a-z ]{400}": _WORDS[:400],
    "[a-zA-Z ,.]{1,300}": _WORDS[:280],
    "[a-zA-Z0-9_-]{1,64}": _WORDS.replace(" ", "_")[:60],
    r"\w{1,200}": _WORDS.replace(" ", "")[:190],
    ".{1,300}": _WORDS[:280],
    "[A-Z][a-z]{1,30} [A-Z][a-z]{1,30}": "Ada Lovelace",
    "[a-z]{1,20}( [a-z]{1,20}){1,40}": _WORDS[:150].strip(),
    "[A-Za-z]+( [A-Za-z]+){0,39}": _WORDS[:150].strip(),
    "[^,]{1,40}(,[^,]{1,40}){3}": "the quick,brown fox,jumps over,the lazy dog",
    r"\S{1,80}": _WORDS.replace(" ", "")[:80],
    "[a-z]{1,9}": "forests",
}
"""Counted repetitions, and one without a count, each with a text that matches."""
_LENGTHS = (9, 20, 60, 400)
"""Values of `maxLength` for JSON strings; the texts are as long."""


class Case(NamedTuple):
    name: str
    constraint: Constraint
    texts: Sequence[str]


def main() -> None:
    arguments = command_line.parser(__doc__, model=DEMO_MODEL, passes=20).parse_args()
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
    record = json.dumps(_RECORD, separators=(",", ":"))
    return [
        Case("JSON as EBNF", Constraint("ebnf", _JSON), [spaced, json.dumps(_DOCUMENT)]),
        Case("expressions as EBNF", Constraint("ebnf", _EXPRESSION), ["a1 *(b +12 )= 7\n" * 3]),
        Case("regex", Constraint("regex", _REGEX), ["Ada Lovelace <ada@example.org>, 1843-09-01"]),
        *(
            Case(pattern, Constraint("regex", pattern), [text])
            for pattern, text in _COUNTED.items()
        ),
        *(
            Case(
                f"JSON string of up to {length}",
                Constraint("json_schema", {"type": "string", "maxLength": length}),
                [json.dumps(_WORDS[:length])],
            )
            for length in _LENGTHS
        ),
        Case("record schema", Constraint("json_schema", json.loads(SCHEMA)), [record]),
        Case(
            "record of short strings",
            Constraint("json_schema", _short_strings()),
            [json.dumps(_SHORT_TEXTS, separators=(",", ":"))],
        ),
    ]


def _short_strings() -> dict[str, Any]:
    strings = {name: {"type": "string", "maxLength": most} for name, most in _SHORT_LENGTHS.items()}
    return {
        "type": "object",
        "properties": strings,
        "required": list(strings),
        "additionalProperties": False,
    }


def _row(case: Case, compiler: Compiler, tokenizer: Tokenizer, passes: int) -> str:
    judged, compiled = [], []
    documents = [tokenizer.encode(text, add_special_tokens=False).ids for text in case.texts]
    tokens = model_tokens.load(compiler.tokens)
    masks: list[list[float]] = []
    for _ in range(passes):
        masks.append([])
        began = time.thread_time()
        grammar = translate(case.constraint, compiler).grammar
        judged.append(time.thread_time() - began)
        for document in documents:
            began = time.thread_time()
            matcher = LLMatcher(tokens, grammar, log_level=0, limits=VALIDATION_LIMITS)
            compiled.append(time.thread_time() - began)
            masks[-1] += _mask_seconds(matcher, document)
    least = sorted(map(min, zip(*masks, strict=True)))
    return (
        f"| {case.name} | {sum(map(len, documents))} | {1e3 * statistics.median(judged):.1f} "
        f"| {1e3 * statistics.median(compiled):.1f} | {1e6 * statistics.median(least):.1f} "
        f"| {1e6 * least[len(least) * 99 // 100]:.0f} |"
    )


def _mask_seconds(matcher: LLMatcher, document: list[int]) -> list[float]:
    """Return seconds to compute each token's mask, over a document that matches."""
    seconds = []
    for token in document:
        began = time.thread_time()
        matcher.compute_bitmask()
        seconds.append(time.thread_time() - began)
        assert matcher.consume_token(token), matcher.get_error()
    assert matcher.is_accepting()
    return seconds


if __name__ == "__main__":
    main()
