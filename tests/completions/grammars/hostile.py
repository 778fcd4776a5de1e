"""Constraints that mean harm: too long, too deep, exploding, ambiguous.

Each is the fields of a request. What must come of them is a refusal, or output that fits.
"""

import json
from collections.abc import Mapping
from typing import Any

Fields = Mapping[str, Any]


def references(links: int, leaf: Any = None) -> dict[str, Any]:
    """A JSON Schema whose definitions lead into each other."""
    chain: dict[str, Any] = {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(links)}
    return {"$ref": "#/$defs/d0", "$defs": {**chain, f"d{links}": leaf or {"type": "string"}}}


def doubling(levels: int) -> dict[str, Any]:
    """2^levels ways through anyOf."""
    chain: dict[str, Any] = {
        f"d{i}": {
            "anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"items": {"$ref": f"#/$defs/d{i + 1}"}}]
        }
        for i in range(levels)
    }
    return {"$ref": "#/$defs/d0", "$defs": {**chain, f"d{levels}": {"type": "string"}}}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def crossed(count: int) -> dict[str, Any]:
    """2^count combinations of allOf and anyOf."""
    pairs = [[{"required": [f"{letter}{i}"]} for letter in "ab"] for i in range(count)]
    return {"type": "object", "allOf": [{"anyOf": pair} for pair in pairs]}


def properties(count: int) -> dict[str, Any]:
    names = {f"property number {i}": {"type": "string"} for i in range(count)}
    return {"type": "object", "properties": names}


def rules(count: int, define: str, first: str) -> str:
    """A chain of rules in EBNF or Lark."""
    chain = (f'r{i} {define} "(" r{i + 1} ")"' for i in range(count))
    return "\n".join([f"{first} {define} r0", *chain, f'r{count} {define} "x"'])


def lark(text: str) -> dict[str, Any]:
    return {"grammar": {"type": "lark", "value": text}}


def grammars(listed: list[Any]) -> dict[str, Any]:
    return {"grammar": {"type": "llguidance", "value": {"grammars": listed}}}


def tag(format: Any) -> dict[str, Any]:
    return {"structural_tag": {"format": format}}


def repeated(content: Any, levels: int) -> Any:
    for _ in range(levels):
        content = {"type": "repeat", "min": 2, "max": 1000, "content": content}
    return content


_JSON = {"type": "json_schema", "json_schema": {"type": "object"}}
_CALLS = [{"begin": f"<f{i}>", "content": _JSON, "end": "</f>"} for i in range(500)]
_DEEP = 5_000
_LETTERS = "abcdefghijklmnopqrst"

ATTACKS: dict[str, Fields] = {
    "1,000 references": {"json_schema": references(1_000)},
    "400 references": {"json_schema": references(400)},
    "2,500 references in Lark": lark(f"start: %json {json.dumps(references(2_500))}"),
    "2,500 references in a list": grammars([{"json_schema": references(2_500)}]),
    "2,000 grammars in a row": grammars(
        [{"name": f"g{i}", "lark_grammar": f"start: @g{i + 1}"} for i in range(2_000)]
        + [{"name": "g2000", "lark_grammar": 'start: "x"'}]
    ),
    "a grammar in itself": grammars([{"name": "g", "lark_grammar": "start: @g"}]),
    "3,000 rules of EBNF": {"ebnf": rules(3_000, "::=", "root")},
    "3,000 rules of Lark": lark(rules(3_000, ":", "start")),
    "400 rules of EBNF": {"ebnf": rules(400, "::=", "root")},
    "400 rules of Lark": lark(rules(400, ":", "start")),
    "3,000 terminals": lark(
        "start: T0\n" + "\n".join(f'T{i}: "a" T{i + 1}' for i in range(3_000)) + '\nT3000: "x"'
    ),
    "deep groups in a regex": {"regex": "(" * _DEEP + "a" + ")" * _DEEP},
    "250 groups in a regex": {"regex": "(" * 250 + "a" + ")" * 250},
    "deep groups in EBNF": {"ebnf": "root ::= " + "(" * _DEEP + '"a"' + ")" * _DEEP},
    "deep groups in Lark": lark("start: " + "(" * _DEEP + '"a"' + ")" * _DEEP),
    "deep groups in a regex in Lark": lark(f"start: /{'(' * _DEEP}a{')' * _DEEP}/"),
    "deep classes": {"regex": "[" * _DEEP + "a" + "]" * _DEEP},
    "60 levels": {"json_schema": nested(28)},
    "1,000 levels": {"json_schema": nested(400)},
    "50,000 levels of text": {"json_schema": '{"items":' * 25_000 + "{}" + "}" * 25_000},
    "100^4 letters": {"regex": "(((a{1,100}){1,100}){1,100}){1,100}"},
    "100,000 letters": {"regex": "[a-z]{1,100000}"},
    "300 times 300 letters": {"regex": "([a-z]{1,300}x){1,300}"},
    "1,000^3 letters of EBNF": {"ebnf": 'root ::= (("a"{1000}){1000}){1000}'},
    "1,000^3 letters by rules": {"ebnf": 'root ::= a{1000}\na ::= b{1000}\nb ::= "x"{1000} "y"'},
    "1,000^3 letters by Lark's rules": lark('start: a{1000}\na: b{1000}\nb: "x"{1000} | "y"'),
    "a tree of 90,000 children": lark('start: ("a" | "b" start){0,90000}'),
    "100,000 items": {"json_schema": {"type": "array", "minItems": 10**5}},
    "10^12 characters": {"json_schema": {"type": "string", "minLength": 10**12}},
    "a multiple of a large prime": {"json_schema": {"type": "integer", "multipleOf": 99_991}},
    "many multiples": {
        "json_schema": {"anyOf": [{"type": "integer", "multipleOf": 9_901 + i} for i in range(50)]}
    },
    "1 MB of values": {"json_schema": {"enum": [f"value number {i}" for i in range(45_000)]}},
    "19,000 values": {"json_schema": {"enum": [f"v{i}" for i in range(19_000)]}},
    "1 MB of properties": {"json_schema": properties(25_000)},
    "999 optional properties": {"json_schema": properties(999)},
    "1 MB of description": {"json_schema": {"type": "null", "description": "x" * 10**6}},
    "1 MB of EBNF": {"ebnf": f'root ::= "{"x" * 10**6}"'},
    "a text of 200 kB": {"ebnf": f'root ::= "{"x" * 200_000}"'},
    "20,000 alternatives": {"ebnf": "root ::= " + " | ".join(f'"{i}"' for i in range(20_000))},
    "25,000 words": {"regex": "|".join(f"w{i}x" for i in range(25_000))},
    "2^40 ways": {"json_schema": doubling(40)},
    "2^12 combinations": {"json_schema": crossed(12)},
    "2^20 combinations": {"json_schema": crossed(20)},
    "a schema that is itself": {"json_schema": {"$ref": "#"}},
    "a schema of itself twice": {"json_schema": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}},
    "backtracking": {"regex": "((x+x+)+y|(a|a)*b|(a*)*c)"},
    "2^18 states": {"regex": ".*a.{18}b"},
    "8 times 2^15 states": {"regex": f"({'|'.join(f'.*{c}.{{15}}' for c in 'abcdefgh')})z"},
    "letters of all scripts": {"regex": r"(\p{L}|\p{N}|\w){1,400}\p{Lu}{300}"},
    "20 intersections": lark(
        "start: T\nT: " + " & ".join(f"/(?s:.*){c}(?s:.*){c}(?s:.*)/" for c in _LETTERS)
    ),
    "ambiguous Lark": lark('start: start start | "a" | "b" | ""'),
    "ambiguous EBNF": {"ebnf": 'root ::= root root | [a-z] | ""'},
    "right recursion": lark("start: /[a-z]/ start | /[a-z]/"),
    "60 patterns of names": {
        "json_schema": {"patternProperties": {f"^.*{i}.{{12}}$": {} for i in range(60)}}
    },
    "500 triggers": tag(
        {"type": "triggered_tags", "tags": _CALLS, "triggers": [call["begin"] for call in _CALLS]}
    ),
    "500 calls": tag({"type": "triggered_tags", "tags": _CALLS, "triggers": ["<f"]}),
    "2,000 excluded words": tag(
        {"type": "any_text", "excludes": [f"word number {i}" for i in range(2_000)]}
    ),
    "2^40 ways through text": tag(
        {
            "type": "sequence",
            "elements": [
                {"type": "any_text", "excludes": ["!"]},
                {
                    "type": "optional",
                    "content": {"type": "tag", "begin": "!", "content": _JSON, "end": ""},
                },
            ]
            * 40,
        }
    ),
    "1,000^20 texts": tag(repeated({"type": "const_string", "value": "ab"}, 20)),
    "1,000^20 values": tag(repeated(_JSON, 20)),
}
