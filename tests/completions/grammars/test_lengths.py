"""The fewest and the most tokens of a grammar, against all of its texts."""

import itertools

import pytest
from llguidance import LLMatcher

from completions.grammars import Constraint, TokenSource, tokens, translate
from completions.grammars.compiler import Compiler
from completions.grammars.lengths import find_bounds


@pytest.fixture(scope="module")
def source(tiny_model):
    """One token for each byte."""
    return TokenSource(str(tiny_model / "tokenizer.json"), 260, (257,))


def bounds(constraint, source):
    return find_bounds(translate(constraint, Compiler(source)).grammar, source)


def fields(properties, required=None, **more):
    required = list(properties) if required is None else required
    schema = {"type": "object", "properties": properties, "required": required, **more}
    return Constraint("json_schema", schema)


BOOLEAN = {"type": "boolean"}


@pytest.mark.parametrize(
    ("constraint", "shortest", "longest"),
    [
        (fields({"a": BOOLEAN}, additionalProperties=False), '{"a":true}', '{"a":false}'),
        (fields({"a": BOOLEAN}, [], additionalProperties=False), "{}", '{"a":false}'),
        (fields({"a": {"type": "string"}}), '{"a":""}', None),
        (fields({"a": {"type": "string", "minLength": 5}}), '{"a":"12345"}', None),
        (fields({"a": {"type": "integer"}, "b": {"enum": ["xy", None]}}), '{"a":0,"b":null}', None),
        (
            fields({"a": {"type": "array", "items": BOOLEAN, "minItems": 2}}),
            '{"a":[true,true]}',
            None,
        ),
        (
            fields({"a": {"$ref": "#/$defs/n"}}, **{"$defs": {"n": {"type": "null"}}}),
            '{"a":null}',
            None,
        ),
        (Constraint("json_schema", {"enum": ["a", "bcd"]}), '"a"', '"bcd"'),
        (Constraint("regex", "(yes|no|perhaps)"), "no", "perhaps"),
        (Constraint("ebnf", 'root ::= "A" | "BCD"'), "A", "BCD"),
    ],
)
def test_bounds_of_grammars_whose_texts_are_known(source, constraint, shortest, longest):
    found = bounds(constraint, source)
    assert found.min_tokens == found.at_least == len(shortest)
    assert found.max_tokens == (None if longest is None else len(longest))


@pytest.mark.parametrize(
    "constraint",
    [
        fields({"a": {"type": "string", "pattern": "^[A-Z]{4}$"}}),
        fields({"a": {"type": "string", "format": "date"}}),
        Constraint("regex", "[a-z]{3}[0-9]{4}"),
        Constraint("regex", "[a-z]+"),
    ],
)
def test_what_cannot_be_found_is_unknown_and_never_too_much(source, constraint):
    found = bounds(constraint, source)
    assert found.min_tokens is None
    assert 1 <= found.at_least <= 16  # {"a":"ABCD"} has 12, a date 18, abc1234 7, a one


def texts_of(grammar, most):
    """The lengths of all texts of up to `most` bytes."""
    lengths = set()
    waiting = [(0, LLMatcher(tokens.load(None), grammar))]
    while waiting:
        length, matcher = waiting.pop()
        if matcher.is_accepting():
            lengths.add(length)
        if matcher.is_stopped() or length == most:
            continue
        mask = matcher.compute_bitmask()
        for byte in b'{}[]",:abtruefalsn01':
            if mask[byte // 8] >> byte % 8 & 1:
                again = matcher.deep_copy()
                again.consume_token(byte)
                waiting.append((length + 1, again))
    return lengths


SMALL = [
    BOOLEAN,
    {"type": "null"},
    {"enum": ["a", True]},
    {"type": "string", "enum": ["bb"]},
    {"anyOf": [BOOLEAN, {"const": 10}]},
    {"type": ["null", "boolean"]},
    {"type": "array", "items": {"const": 1}, "minItems": 1, "maxItems": 2},
]


@pytest.mark.parametrize(("one", "other"), [*itertools.product(range(len(SMALL)), repeat=2)])
def test_no_text_is_shorter_than_the_least(source, one, other):
    """Of one required and one optional property of any small kinds."""
    properties = {"a": SMALL[one], "b": SMALL[other]}
    constraint = fields(properties, ["a"], additionalProperties=False)
    grammar = translate(constraint, Compiler(source)).grammar
    found = find_bounds(grammar, source)
    lengths = texts_of(grammar, 24)
    assert found.min_tokens == min(lengths)
    assert found.max_tokens is None or found.max_tokens >= max(lengths)
