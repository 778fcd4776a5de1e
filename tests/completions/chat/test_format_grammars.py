"""The grammars of the formats: they accept what the writer writes and what models spell in another
way, and what they generate is read as an instance."""

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher

from completions.chat.grammar import make_answer_constraint
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import Tool, ToolCall
from completions.grammars import tokens, translate
from tests.completions.chat import reading
from tests.completions.chat.test_grammar import ANY, GOOD, Bench, calls
from tests.representatives import stand_for_all

by_form = pytest.mark.parametrize("form", stand_for_all(reading.REPRESENTATIVES, TOOL_FORMATS))


@pytest.mark.represented_by("hermes", "glm", "qwen3_coder")
@by_form
def test_the_grammar_accepts_what_the_writer_writes(tmp_path: Path, form: str) -> None:
    record = TOOL_FORMATS[form]
    written = record.write
    said = f"{record.content[1]}I look.{record.content[2]}"
    bad = written(ToolCall("weather", {"city": "Rome"}))
    for special in (False, True):
        bench = Bench(tmp_path, ["<|x|>", *record.delimiters] if special else [])
        for text, fits, choice in (
            (f"I look.\n{written(GOOD, ANY)}", not any(record.content), {}),
            (f"{said if record.content[2] else ''}{written(GOOD, ANY)}", True, {}),
            (written(GOOD, ANY), True, {"mode": "required"}),
            (written(GOOD, GOOD), False, {"parallel": False}),
            (written(GOOD)[:-1], False, {}),
            (bad, False, {}),
            (said, True, {}),
        ):
            assert bench.fits(text, calls(form, **choice)) is fits, (text, choice)


PLAIN = {
    "type": "object",
    "properties": {
        "s": {"type": "string", "maxLength": 6},
        "e": {"enum": ["a b", "c", 4, None]},
        "n": {"type": "integer", "minimum": -5, "maximum": 90},
        "b": {"type": ["boolean", "null"]},
        "l": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
        "o": {
            "type": "object",
            "properties": {"x": {"type": "number"}, "y": {"type": "boolean"}},
            "required": ["x"],
            "additionalProperties": False,
        },
    },
    "required": ["e", "l"],
    "additionalProperties": False,
}


@pytest.mark.represented_by("hermes", "glm", "qwen3_coder")
@by_form
def test_what_the_grammar_generates_is_read_as_an_instance(tmp_path: Path, form: str) -> None:
    tool = Tool("f", None, PLAIN, strict=True)
    bench = Bench(tmp_path, [*TOOL_FORMATS[form].delimiters])
    asked = calls(form, tool, mode="required", parallel=False)
    wanted = make_answer_constraint(None, asked, None)
    assert wanted is not None
    grammar = translate(wanted, bench.compiler).grammar
    table = tokens.load(bench.compiler.tokens)
    chance = random.Random(form)  # noqa: S311 - a test repeats itself
    for _ in range(12):
        matcher = LLMatcher(table, grammar, log_level=0)
        ids: list[int] = []
        while not matcher.is_stopped():
            allowed = [i for i, bit in enumerate(matcher.compute_logit_bias()) if bit]
            ascii_only = [i for i in allowed if i < 95 or i >= 256] or allowed
            token = 256 if 256 in allowed else chance.choice(ascii_only)
            if token == 256:
                break
            ids.append(token)
            assert matcher.consume_token(token)
            assert len(ids) < 2_000
        text = bench.tokenizer.decode(ids, skip_special_tokens=False)
        ((_, arguments),) = reading.read(form, [text], [tool]).calls
        jsonschema.validate(json.loads(arguments), PLAIN)


NESTED = {
    "type": "object",
    "properties": {
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "minItems": 1, "maxItems": 2},
        "place": {"$ref": "#/$defs/place"},
        "flag": {"type": ["boolean", "null"]},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": 5}},
        "never": False,
    },
    "additionalProperties": False,
    "$defs": {
        "tag": {"type": "string", "pattern": "^[a-z]+$"},
        "place": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "in": {"$ref": "#/$defs/place"}},
            "required": ["x"],
        },
    },
}


@pytest.mark.represented_by("arguments0-True-pythonic", "arguments4-False-pythonic")
@pytest.mark.parametrize("form", ["pythonic", "gemma4", "minimax_m3"])
@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ({}, True),
        ({"place": {"x": 1, "in": {"x": 2}}}, True),
        ({"tags": ["a", "b"], "flag": None}, True),
        ({"flag": True}, True),
        ({"tags": []}, False),
        ({"tags": ["a", "b", "c"]}, False),
        ({"tags": ["A"]}, False),
        ({"place": {"in": {"x": 2}}}, False),
        ({"place": {"x": "one"}}, False),
        ({"flag": 1}, False),
        ({"sizes": [5, 60]}, True),
        ({"sizes": [5, 4]}, False),
        ({"never": 1}, False),
        ({"more": 1}, False),
    ],
)
def test_literals_fit_their_schema(
    tmp_path: Path, form: str, arguments: dict[str, Any], fits: bool
) -> None:
    tool = Tool("f", None, NESTED, strict=True)
    asked = calls(form, tool, mode="required")
    for special in (False, True):
        bench = Bench(tmp_path, [*TOOL_FORMATS[form].delimiters] if special else [])
        assert bench.fits(TOOL_FORMATS[form].write(ToolCall("f", arguments)), asked) is fits


@pytest.mark.parametrize("form", ["pythonic", "gemma4", "minimax_m3", "qwen3_coder", "hermes"])
def test_many_tools_fit_into_one_grammar(tmp_path: Path, form: str) -> None:
    tools = [Tool(f"{word}_{i}", None, NESTED) for i in range(30) for word in ("get", "put")]
    asked = calls(form, *tools)
    bench = Bench(tmp_path, [*TOOL_FORMATS[form].delimiters])
    assert bench.fits("See " + TOOL_FORMATS[form].write(ToolCall("put_29", {"flag": True})), asked)


SPELLED = {
    "type": "object",
    "properties": {
        "b": {"type": ["boolean", "null"]},
        "s": {"type": ["string", "null"]},
        "t": {"type": "string", "maxLength": 4},
    },
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("form", "arguments", "fits"),
    [
        ("qwen3_coder", "<parameter=b>\nTrue\n</parameter>", True),
        ("qwen3_coder", "<parameter=b>\nNone\n</parameter>", True),
        ("qwen3_coder", "<parameter=b>\ntrue\n</parameter>", True),
        ("qwen3_coder", "<parameter=b>\nTRUE\n</parameter>", False),
        ("minimax_m2", '<parameter name="b">True</parameter>', False),
        ("pythonic", "s='it\\'s'", True),
        ("pythonic", 's="it\'s"', True),
        ("pythonic", "s=None", True),
        ("pythonic", "s='it's'", False),
        ("pythonic", "t='abcd'", False),
    ],
)
def test_values_may_be_spelled_as_python_spells_them(
    tmp_path: Path, form: str, arguments: str, fits: bool
) -> None:
    whole = {
        "qwen3_coder": f"<tool_call>\n<function=f>\n{arguments}\n</function>\n</tool_call>",
        "minimax_m2": f'<minimax:tool_call>\n<invoke name="f">\n{arguments}\n</invoke>\n'
        "</minimax:tool_call>",
        "pythonic": f"[f({arguments})]",
    }
    asked = calls(form, Tool("f", None, SPELLED, strict=True), mode="required")
    assert Bench(tmp_path, []).fits(whole[form], asked) is fits


WORDS = [
    "get",
    "put",
    "add",
    "list",
    "find",
    "open",
    "close",
    "read",
    "write",
    "send",
    "make",
    "move",
    "copy",
    "run",
    "stop",
]
OBJECTS = ("file", "user", "job", "order")


@pytest.mark.parametrize("form", ["pythonic", "llama3", "xlam"])
def test_many_tools_share_few_triggers_and_leave_brackets_alone(tmp_path: Path, form: str) -> None:
    names = [f"{word}_{thing}" for word in WORDS for thing in OBJECTS]
    triggers = TOOL_FORMATS[form].list_triggers(names)
    assert len(triggers) <= 32 < len(names)
    for name in names:
        text = TOOL_FORMATS[form].write(ToolCall(name, {}))
        assert sum(map(text.startswith, triggers)) == 1
    asked = calls(form, *(Tool(name, None, {"type": "object"}) for name in names))
    bench = Bench(tmp_path, [])
    assert bench.fits('[go](x) [made, up] {"name": "Max"}', asked)
    assert bench.fits(TOOL_FORMATS[form].write(ToolCall("send_job", {"a": 1})), asked)
    assert not bench.fits(TOOL_FORMATS[form].write(ToolCall("send_job", {}))[:-2], asked)


@pytest.mark.parametrize("special", [False, True])
def test_glm_strings_hold_their_patterns(tmp_path: Path, special: bool) -> None:
    bench = Bench(tmp_path, [*TOOL_FORMATS["glm"].delimiters] if special else [])
    schema = {"properties": {"zip": {"type": "string", "pattern": "^[0-9]{5}$"}}}
    asked = calls("glm", Tool("f", None, schema, strict=True), mode="required")
    written = TOOL_FORMATS["glm"].write
    assert bench.fits(written(ToolCall("f", {"zip": "10115"})), asked)
    assert not bench.fits(written(ToolCall("f", {"zip": "1011"})), asked)
    assert not bench.fits(written(ToolCall("f", {"zip": "10115", "more": "x"})), asked)


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ["New York", None, "12"]),
        ({"type": ["string", "null"]}, ["New York", None, "12", '"']),
        ({"enum": ["1", 2]}, ["1", 2]),
        (
            {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 5}]},
            ["x", "12 apples", 7, "3"],
        ),
        (
            {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]},
            ["x", [1], '["y"]'],
        ),
        ({"$ref": "#/$defs/short"}, ["3", "yes"]),
    ],
)
def test_what_glm_writes_without_quotes_is_read_by_its_schema(
    tmp_path: Path, schema: dict[str, Any], values: list[Any]
) -> None:
    bench = Bench(tmp_path, [])
    definitions = {"short": {"type": "string", "maxLength": 3}}
    parameters = {"properties": {"a": schema}, "required": ["a"], "$defs": definitions}
    tool = Tool("f", None, parameters, strict=True)
    for value in values:
        call = TOOL_FORMATS["glm"].write(ToolCall("f", {"a": value}))
        assert bench.fits(call, calls("glm", tool, mode="required"))
        ((_, text),) = reading.read("glm", [call], [tool]).calls
        assert json.loads(text) == {"a": value}


def test_many_optional_arguments_of_glm_stay_small(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [])
    properties = {f"p{i}": {"type": ("string", "integer")[i % 2]} for i in range(40)}
    tools = [Tool(f"f{i}", None, {"properties": properties}, strict=True) for i in range(20)]
    asked = calls("glm", *tools)
    assert bench.fits(TOOL_FORMATS["glm"].write(ToolCall("f7", {"p2": "x", "p31": 4})), asked)


def test_glm_strings_with_lengths_and_shared_definitions(tmp_path: Path) -> None:
    bench = Bench(tmp_path, [])
    schema = {
        "properties": {
            "short": {"type": "string", "minLength": 1, "maxLength": 3},
            "point": {"$ref": "#/$defs/point"},
        },
        "additionalProperties": False,
        "$defs": {"point": {"type": "array", "items": {"type": "integer"}, "maxItems": 2}},
    }
    tool = Tool("f", None, json.loads(json.dumps(schema)), strict=True)
    asked = calls("glm", tool, mode="required")
    written = TOOL_FORMATS["glm"].write
    assert bench.fits(written(ToolCall("f", {"short": "abc", "point": [1, 2]})), asked)
    assert bench.fits(written(ToolCall("f", {})), asked)
    assert not bench.fits(written(ToolCall("f", {"short": "abcd"})), asked)
    assert not bench.fits(written(ToolCall("f", {"short": ""})), asked)
    assert not bench.fits(written(ToolCall("f", {"point": [1, 2, 3]})), asked)


@pytest.mark.parametrize("special", [False, True])
def test_a_call_may_be_written_in_other_ways(tmp_path: Path, special: bool) -> None:
    """As Llama does, whose template lists tools with their type."""
    bench = Bench(tmp_path, ["<|x|>"] if special else [])
    head = '{"type": "function", "name": "weather", "parameters": '
    for choice in ({}, {"mode": "required"}, {"parallel": False}):
        asked = calls("llama3", **choice)
        assert bench.fits(f"{head}{GOOD.text}}}", asked)
        assert not bench.fits(head + '{"city": "Rome"}}', asked)
        assert not bench.fits(f"{head}{GOOD.text}", asked)
    text = '{"type": "function", "name": "other", "parameters": {}}'
    assert bench.fits(text, calls("llama3"))
    assert bench.fits(f"{head}{GOOD.text}}}; {TOOL_FORMATS['llama3'].write(ANY)}", calls("llama3"))
