"""The formats of tool calls: rows of what models write, and each record's own promises."""

import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from django.conf import settings
from llguidance import LLMatcher

from completions.catalog.entries import TOOL_FORMAT_NAMES
from completions.chat.grammar import Reasoning, make_answer_constraint
from completions.chat.reasoning import ReasoningParser, ThinkTags
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import Tool, ToolCall
from completions.grammars import Constraint, tokens, translate
from tests.completions.chat import reading
from tests.completions.chat.test_grammar import ANY, GOOD, Bench, calls
from tests.conformance.chat_templates.table import FORMATS, THINKING

STRINGS = {"type": "object", "properties": {"city": {"type": "string"}, "q": {"type": "string"}}}
TOOLS = (Tool("weather", None, STRINGS), Tool("time", None, STRINGS), Tool("now"))
BAR, BLOCK = "\uff5c", "\u2581"
NAMESPACE = "]<]minimax[>["
MARKS = str.maketrans({"!": BAR, "_": BLOCK})


def read(form: str, pieces: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """The text around calls, and the calls."""
    message = reading.read(form, pieces, TOOLS)
    return message.content.strip(), message.calls


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("pythonic", '{"code":"[now()]"}'),
        ("glm", '{"code":"Use <tool_call>now</tool_call> here"}'),
        ("qwen3_coder", '{"code":"<tool_call>\\n<function=now>\\n</function>\\n</tool_call>"}'),
        ("mistral", '{"code":"[TOOL_CALLS]now[ARGS]{}"}'),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_no_call_follows_a_constrained_answer(form: str, text: str, size: int) -> None:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    message = reading.read(form, pieces, TOOLS, only_first=True)
    assert (message.content, message.calls) == (text, [])


@pytest.mark.parametrize("form", ["glm", "mistral", "hermes", "llama3", "minimax_m2"])
def test_a_tool_that_was_not_offered_is_not_called(form: str) -> None:
    text = TOOL_FORMATS[form].write(ToolCall("delete", {}))
    assert read(form, [text]) == (text.strip(), [])


@pytest.mark.parametrize("form", ["pythonic", "olmo3", "lfm2", "llama4_pythonic", "gemma4"])
@pytest.mark.parametrize("name", ["user name", "a=b", "a,b", "a)", "dc:title", "a}", "plain"])
def test_any_name_of_an_argument_is_read_back(form: str, name: str) -> None:
    text = TOOL_FORMATS[form].write(ToolCall("weather", {name: "v"}))
    around, found = read(form, [text])
    assert (around, [(tool, json.loads(said)) for tool, said in found]) == (
        "",
        [("weather", {name: "v"})],
    )


DSML = (
    '<!DSML!invoke name="weather">\n<!DSML!parameter name="city" string="true">12</!DSML!parameter>'
    '\n<!DSML!parameter name="n" string="false">[1]</!DSML!parameter>\n</!DSML!invoke>\n'
)
WEATHER = ("weather", {"city": "Rome"})
ROWS: list[tuple[str, str, list[tuple[str, Any]], str]] = [
    (
        "hermes",
        '<tool_call>{"name":"weather","arguments":{"city":"Rome"}}</tool_call>',
        [WEATHER],
        "",
    ),
    ("llama3", '{"name": "weather", "parameters": {"city": "Rome"}}', [WEATHER], ""),
    (
        "llama3",
        '{"name": "now", "parameters": {}}; {"name": "now", "parameters": {}}',
        [("now", {})] * 2,
        "",
    ),
    (
        "glm",
        "Ok.<tool_call>weather<arg_key>city</arg_key><arg_value>7</arg_value></tool_call>"
        "<tool_call>now\n</tool_call>",
        [("weather", {"city": "7"}), ("now", {})],
        "Ok.",
    ),
    (
        "openai",
        ' to=functions.weather<|channel|>commentary json<|message|>{"city": "Rome"}',
        [WEATHER],
        "",
    ),
    (
        "openai",
        ' to=functions.weather<|channel|>commentary <|constrain|>json<|message|>{"city": "Rome"}',
        [WEATHER],
        "",
    ),
    (
        "openai",
        '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Rome"}',
        [WEATHER],
        "",
    ),
    (
        "hermes",
        '<tool_call>{"name": 3}<tool_call>{"name": "now", "arguments": {}}</tool_call>',
        [("now", {})],
        '<tool_call>{"name": 3}',
    ),
    ("hermes", '<tool_call>\n{"arguments": {}, "name": "now"}\n', [("now", {})], ""),
    (
        "qwen3_coder",
        "So.\n<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n"
        "<parameter=n>\n[1, 2]\n</parameter>\n</function>\n</tool_call>",
        [("weather", {"city": "Rome", "n": [1, 2]})],
        "So.",
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=weather>\n<parameter=city>\n\n a\nb\n\n</parameter>\n</function>",
        [("weather", {"city": "\n a\nb\n"})],
        "",
    ),
    ("qwen3_coder", "<tool_call>\n<function=now>\n</function>\n</tool_call>", [("now", {})], ""),
    (
        "seed_oss",
        "<seed:tool_call>\n<function=weather>\n<parameter=city>Barcelona, Spain</parameter>\n"
        "</function>\n</seed:tool_call>",
        [("weather", {"city": "Barcelona, Spain"})],
        "",
    ),
    (
        "minimax_m2",
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city"> 5 </parameter>\n'
        '</invoke>\n<invoke name="now">\n</invoke>\n</minimax:tool_call>',
        [("weather", {"city": " 5 "}), ("now", {})],
        "",
    ),
    (
        "minimax_m3",
        'Ok.!<tool_call>\n!<invoke name="weather">!<city> 5 < <b>!</city>!<n>3!</n>!<l>'
        "!<item>a!</item>!<item>!<x>1!</x>!</item>!</l>!<o>!<item>!<y>true!</y>!</item>!</o>!</invoke>\n"
        '!<invoke name="now">\n!</invoke>\n!</tool_call>'.replace("!", NAMESPACE),
        [
            ("weather", {"city": " 5 < <b>", "n": 3, "l": ["a", {"x": 1}], "o": [{"y": True}]}),
            ("now", {}),
        ],
        "Ok.",
    ),
    (
        "minimax_m3",
        '!<tool_call>\n!<invoke name="weather">!<city>!</city>!</invoke>'.replace("!", NAMESPACE),
        [("weather", {"city": ""})],
        "",
    ),
    (
        "deepseek_v32",
        f"Hm.\n\n<!DSML!function_calls>\n{DSML}</!DSML!function_calls>".replace("!", BAR),
        [("weather", {"city": "12", "n": [1]})],
        "Hm.",
    ),
    (
        "deepseek_v4",
        f"<!DSML!tool_calls>\n{DSML}{DSML}</!DSML!tool_calls>".replace("!", BAR),
        [("weather", {"city": "12", "n": [1]})] * 2,
        "",
    ),
    (
        "deepseek_v3",
        "a<!tool_calls_begin!><!tool_call_begin!>function<!tool_sep!>weather\n```json\n"
        '{"city": "Rome"}\n```<!tool_call_end!>\n<!tool_call_begin!>function<!tool_sep!>now\n'
        "```json\n{}\n```<!tool_call_end!><!tool_calls_end!>".translate(MARKS),
        [WEATHER, ("now", {})],
        "a",
    ),
    (
        "deepseek_v31",
        '<!tool_calls_begin!><!tool_call_begin!>weather<!tool_sep!>{"city": "Rome"}'
        "<!tool_call_end!><!tool_call_begin!>now<!tool_sep!>{}<!tool_call_end!><!tool_calls_end!>".translate(
            MARKS
        ),
        [WEATHER, ("now", {})],
        "",
    ),
    (
        "kimi_k2",
        "Look.<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
        '<|tool_call_argument_begin|>{"city": "Rome"}<|tool_call_end|><|tool_call_begin|>'
        "functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        [WEATHER, ("now", {})],
        "Look.",
    ),
    (
        "mistral",
        '[TOOL_CALLS]weather[ARGS]{"city": "Rome"}[TOOL_CALLS]now[ARGS]{}',
        [WEATHER, ("now", {})],
        "",
    ),
    (
        "mistral_list",
        '[TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Rome"}}]',
        [WEATHER],
        "",
    ),
    (
        "granite",
        'I.\n<|tool_call|> [\n  {"name": "weather", "arguments": {"city": "Rome"}},\n'
        '  {"arguments": {}, "name": "now"}\n]',
        [WEATHER, ("now", {})],
        "I.",
    ),
    ("granite_20b_fc", '<function_call> {"name": "now", "arguments": {}}', [("now", {})], ""),
    ("phi4_mini", 'functools[{"name": "weather", "arguments": {"city": "Rome"}}]', [WEATHER], ""),
    (
        "hunyuan_a13b",
        'Ok <tool_calls>[{"name": "weather", "arguments": {"city": "Rome"}}]</tool_calls>',
        [WEATHER],
        "Ok",
    ),
    (
        "jamba",
        '<tool_calls>[\n    {"name": "weather", "arguments": {"city": "Rome"}}\n]</tool_calls>',
        [WEATHER],
        "",
    ),
    (
        "internlm",
        'x<|action_start|><|plugin|>\n{"name": "weather", "parameters": {"city": "Rome"}}'
        "<|action_end|>",
        [WEATHER],
        "x",
    ),
    (
        "ernie45",
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n',
        [WEATHER],
        "",
    ),
    (
        "ernie45",
        "<response>\nIn <response>, or </response>\nit is.\n</response>\n",
        [],
        "In <response>, or </response>\nit is.",
    ),
    ("ernie45", "\n<response>\n</response>", [], ""),
    ("ernie45", "No </response> here </resp", [], "No </response> here </resp"),
    (
        "ernie45",
        "<response>I look.</response>\n\n"
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n',
        [WEATHER],
        "I look.",
    ),
    (
        "solar_open",
        "<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>weather<|tool_call:args|>"
        '{"city": "Rome"}<|tool_call:end|><|tool_call:begin|>b1b2c3d4e5<|tool_call:name|>now'
        "<|tool_call:args|>{}<|tool_call:end|><|calls|>",
        [WEATHER, ("now", {})],
        "",
    ),
    (
        "longcat_xml",
        "Ok.<longcat_tool_call>weather\n<longcat_arg_key>city</longcat_arg_key>\n"
        "<longcat_arg_value>7</longcat_arg_value>\n</longcat_tool_call>",
        [("weather", {"city": "7"})],
        "Ok.",
    ),
    (
        "minimax_m1",
        '<tool_calls>\n{"name": "weather", "arguments": {"city": "Rome"}}\n'
        '{"name": "now", "arguments": {}}\n</tool_calls>',
        [WEATHER, ("now", {})],
        "",
    ),
    (
        "nemotron_nano",
        'I.\n<TOOLCALL>[{"name": "weather", "arguments": {"city": "Rome"}}]</TOOLCALL>',
        [WEATHER],
        "I.",
    ),
    (
        "mistral_ids",
        '[TOOL_CALLS]weather[CALL_ID]c557a85a0[ARGS]{"city": "Rome"}',
        [WEATHER],
        "",
    ),
    (
        "gigachat3_roles",
        'function call<|role_sep|>\n{"name": "weather", "arguments": {"city": "Rome"}}'
        "<|message_sep|>",
        [WEATHER],
        "",
    ),
    (
        "longcat",
        '<longcat_tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</longcat_tool_call>',
        [WEATHER],
        "",
    ),
    ("xlam", '[{"name": "weather", "arguments": {"city": "Rome"}}]', [WEATHER], ""),
    ("xlam", "Not [a, b] a call.", [], "Not [a, b] a call."),
    (
        "apertus",
        '<|tools_prefix|>[{"weather": {"city": "Rome"}}, {"now": {}}]<|tools_suffix|>',
        [WEATHER, ("now", {})],
        "",
    ),
    ("apertus", '<|tools_prefix|>[{"weather": {"city": "Rome"}}]', [WEATHER], ""),
    (
        "cohere_command",
        '<|START_ACTION|>\n[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters": '
        '{"city": "Rome"}},\n    {"tool_call_id": "1", "tool_name": "now", "parameters": {}}\n]\n'
        "<|END_ACTION|>",
        [WEATHER, ("now", {})],
        "",
    ),
    (
        "kimi_k3",
        '<|open|>tools<|sep|><|open|>call tool="weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|> 7<|close|>argument<|sep|>'
        '<|open|>argument key="n" type="array"<|sep|>[1]<|close|>argument<|sep|>'
        '<|close|>call<|sep|><|open|>call tool="now" index="2"<|sep|><|close|>call<|sep|>'
        "<|close|>tools<|sep|>",
        [("weather", {"city": " 7", "n": [1]}), ("now", {})],
        "",
    ),
    (
        "solar_open2",
        "Hm.<|tool_call:start|>weather\n<|tool_arg:start|>city<|tool_arg:value|>Rome\n"
        "<|tool_arg:end|>\n<|tool_arg:start|>n<|tool_arg:value|>[1]<|tool_arg:end|>\n"
        "<|tool_call:end|>\n<|tool_call:start|>now\n<|tool_call:end|>",
        [("weather", {"city": "Rome\n", "n": [1]}), ("now", {})],
        "Hm.",
    ),
    (
        "poolside_v1",
        "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n</tool_call>",
        [WEATHER],
        "",
    ),
    ("gigachat3", '<|function_call|>{"name": "now", "arguments": {}}', [("now", {})], ""),
    (
        "step3",
        '<!tool_calls_begin!><!tool_call_begin!>function<!tool_sep!><steptml:invoke name="weather">'
        '<steptml:parameter name="city">Rome </steptml:parameter></steptml:invoke><!tool_call_end!>'
        "<!tool_calls_end!>".replace("!", BAR),
        [("weather", {"city": "Rome "})],
        "",
    ),
]


TYPES = {
    "name": "John Doe",
    "age": -37.5,
    "address": {"city": "San Francisco", "no": [1, None]},
    "role": None,
    "passed": True,
    "aliases": ["John", "Johnny"],
}
PYTHON = (
    "weather(name='John Doe', age=-37.5, address={'city': 'San Francisco', 'no': [1, None]}, "
    "role=None, passed=True, aliases=['John', \"Johnny\"])"
)
ESCAPED = r"""weather(city='Martha\'s \"x\"\n\\', q="it's \u00e9")"""
GEMMA = (
    "call:weather{name:<q>John Doe<q>,age:-37.5,address:{city:<q>San Francisco<q>,no:[1,null]},"
    "role:null,passed:true,aliases:[<q>John<q>,<q>Johnny<q>]}"
)
ROWS += [
    ("pythonic", f"[{PYTHON}, now()]", [("weather", TYPES), ("now", {})], ""),
    ("pythonic", f"[{ESCAPED}]", [("weather", {"city": 'Martha\'s "x"\n\\', "q": "it's é"})], ""),
    ("pythonic", "[weather](https://a) and [1, 2]", [], "[weather](https://a) and [1, 2]"),
    ("llama4_pythonic", "[now()]", [("now", {})], ""),
    (
        "olmo3",
        f"<function_calls>{PYTHON}\nnow()</function_calls>",
        [("weather", TYPES), ("now", {})],
        "",
    ),
    (
        "lfm2",
        'I.<|tool_call_start|>[weather(city="Rome")]<|tool_call_end|>On.',
        [WEATHER],
        "I.On.",
    ),
    (
        "gemma4",
        f"Let me.<|tool_call>{GEMMA}<tool_call|><|tool_call>call:now{{}}<tool_call|>".replace(
            "<q>", '<|"|>'
        ),
        [("weather", TYPES), ("now", {})],
        "Let me.",
    ),
    (
        "gemma4",
        '<|tool_call>call:time{q:{<|"|>3<|"|>:<|"|>a{,]<|"|>}}',
        [("time", {"q": {"3": "a{,]"}})],
        "",
    ),
    (
        "functiongemma",
        f"<start_function_call>{GEMMA}<end_function_call>".replace("<q>", "<escape>"),
        [("weather", TYPES)],
        "",
    ),
]


@pytest.mark.parametrize(("form", "text", "found", "content"), ROWS)
def test_what_models_write_is_read(
    form: str, text: str, found: list[tuple[str, Any]], content: str
) -> None:
    whole = read(form, [text])
    assert whole[0] == content
    assert [(name, json.loads(arguments)) for name, arguments in whole[1]] == found
    for pieces in (list(text), [text[i : i + 3] for i in range(0, len(text), 3)]):
        assert read(form, pieces) == whole


@pytest.mark.parametrize("form", TOOL_FORMATS)
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


@pytest.mark.parametrize("form", TOOL_FORMATS)
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


def test_every_format_has_rows():
    assert {form for form, *_ in ROWS} == set(TOOL_FORMATS)


def test_models_toml_names_the_formats_that_there_are():
    assert set(TOOL_FORMAT_NAMES) == set(TOOL_FORMATS)


def list_think_tags(form: str) -> list[str]:
    """Return the tags that begin reasoning in the templates at hand with this format of calls, or
    that its record has."""
    record = TOOL_FORMATS[form].think
    tags = {record[0]} if record else set[str]()
    tags |= {
        tag
        for package, formats in FORMATS.items()
        for tag, names in THINKING[package].items()
        if not set(formats.get(form, "").split()).isdisjoint(names.split())
    }
    return sorted(f"`{tag}`".replace("|", "\\|") for tag in tags)


def test_the_documentation_lists_the_formats():
    rows = [
        f"| {form.families} | `{name}` | {', '.join(list_think_tags(name)) or 'none'} |"
        for name, form in sorted(TOOL_FORMATS.items())
    ]
    table = "\n".join(["| family | `tool_format` | thinking |", "|---|---|---|", *rows])
    assert table in (settings.BASE_DIR / "docs" / "models.md").read_text(), table


CHANNELS = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Rome"}'


@pytest.mark.parametrize(
    ("text", "reasoning", "content", "num_calls"),
    [
        (f"{CHANNELS}<|channel|>final<|message|>Yes.", "Hm.", "Yes.", 0),
        ("<|channel|>final<|message|>Yes.", "", "Yes.", 0),
        (f"{CHANNELS}{CALL}", "Hm.", "", 1),
        (
            f"{CHANNELS}<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{CALL}",
            "Hm.",
            "I look.",
            1,
        ),
        ("<|channel|>analysis<|message|>Hm", "Hm", "", 0),
        (
            f"{CHANNELS}<|channel|>analysis<|message|>So.<|end|><|start|>assistant"
            "<|channel|>final<|message|>Yes.",
            "Hm.\nSo.",
            "Yes.",
            0,
        ),
        (
            f"{CHANNELS}<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
            f"<|channel|>analysis<|message|>So.<|end|><|start|>assistant{CALL}<|end|>"
            f"<|start|>assistant{CALL}",
            "Hm.\nSo.",
            "I look.",
            2,
        ),
    ],
)
def test_channels_are_parts_of_a_message(
    text: str, reasoning: str, content: str, num_calls: int
) -> None:
    form = TOOL_FORMATS["openai"]
    tags = ThinkTags("<|channel|>analysis<|message|>", "<|end|>")
    for pieces in ([text], list(text)):
        thinking = ReasoningParser(tags, is_open=False, lead=form.content[0])
        message = reading.read("openai", pieces, TOOLS, thinking)
        assert (message.reasoning, message.content) == (reasoning, content)
        assert len(message.calls) == num_calls


@pytest.mark.parametrize("special", [False, True])
def test_channels_of_a_constrained_answer(tmp_path: Path, special: bool) -> None:
    form = TOOL_FORMATS["openai"]
    marks = ["<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|constrain|>"]
    bench = Bench(tmp_path, marks if special else [])
    tags = ThinkTags("<|channel|>analysis<|message|>", "<|end|>")
    thoughts = Reasoning(tags, is_open=False, lead=form.content[0])
    answer = Constraint("regex", "[0-9]+")
    for asked, text, fits in (
        (None, "<|channel|>final<|message|>12", True),
        (None, "<|channel|>analysis<|message|>Hm.<|end|><|channel|>final<|message|>12", True),
        (None, f"{CHANNELS}<|channel|>final<|message|>12", True),
        (None, f"{CHANNELS}{CHANNELS}<|channel|>final<|message|>12", True),
        (calls("openai"), f"{CHANNELS}{form.write(GOOD, GOOD)}", True),
        (None, "12", False),
        (None, "<|channel|>final<|message|>a", False),
        (calls("openai"), form.write(GOOD), True),
        (calls("openai"), "<|channel|>final<|message|>12", True),
    ):
        wanted = make_answer_constraint(thoughts, asked, answer, tool_format=form)
        assert bench.accepts(text, wanted) is fits, text


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
