"""What models write in each format, and the calls and the content that are read from it."""

from typing import Any

from completions.chat.tools import Tool

STRINGS = {"type": "object", "properties": {"city": {"type": "string"}, "q": {"type": "string"}}}
TOOLS = (Tool("weather", None, STRINGS), Tool("time", None, STRINGS), Tool("now"))
"""The tools that are offered."""
BAR, BLOCK = "\uff5c", "\u2581"
NAMESPACE = "]<]minimax[>["
MARKS = str.maketrans({"!": BAR, "_": BLOCK})

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
        '{"type": "function", "name": "weather", "parameters": {"city": "Rome"}}; '
        '{"name": "now", "parameters": {}}',
        [WEATHER, ("now", {})],
        "",
    ),
    (
        "llama3",
        '{"type": "function", "name": "delete", "parameters": {}}',
        [],
        '{"type": "function", "name": "delete", "parameters": {}}',
    ),
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
