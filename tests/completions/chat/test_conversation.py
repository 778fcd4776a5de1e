"""Conversations into prompts: templates that know tools, and templates that do not."""

import re
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from completions.catalog.control_tokens import ControlTokens
from completions.catalog.entries import ModelEntry
from completions.catalog.model_files import ModelFiles
from completions.chat.conversation import can_trace, render_prompt
from completions.chat.template import ChatTemplateError
from completions.chat.tool_format import ID
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import Tool, ToolCall, dump

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}>"
KNOWS = (
    "{{ tools | tojson }}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name + '@' }}{{ c.function.arguments.city }}"
    "{% endfor %}{% endfor %}{% if fast %}!{% endif %}>"
)
TOOLS = (Tool("weather", "Tells it.", {"type": "object"}),)
CALL = {
    "id": "c",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Rome"}},
}
MESSAGES = [
    {"role": "user", "content": "Go."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "Sun.", "tool_call_id": "c"},
]


def render(folder: Path, source: str, messages: Any, form: str | None = "hermes", **kw: Any) -> str:
    (folder / "chat_template.jinja").write_text(source)
    model = ModelFiles(ModelEntry("m", folder), 10, 64, (), 0)
    tools = kw.pop("tools", TOOLS)
    return render_prompt(model, messages, tools, TOOL_FORMATS[form] if form else None, kw)


def test_a_template_that_knows_tools_gets_them(tmp_path: Path) -> None:
    text = render(tmp_path, KNOWS, MESSAGES, fast=True)
    assert text.startswith('[{"type": "function", "function": {"name": "weather",')
    assert text.endswith("[user]Go.[assistant]weather@Rome[tool]Sun.!>")


def test_a_template_may_search_the_text_of_a_message_without_any(tmp_path: Path) -> None:
    source = (
        "{% for m in messages %}{% if '</think>' in m.content %}thought{% endif %}"
        "{{ '[' + m.role + ']' + m.content }}{{ m.tool_calls | length }}{% endfor %}"
        "{{ tools | length }}"
    )
    assert render(tmp_path, source, MESSAGES) == "[user]Go.0[assistant]1[tool]Sun.01"


@pytest.mark.parametrize("form", TOOL_FORMATS)
def test_a_template_that_does_not_gets_text(tmp_path: Path, form: str) -> None:
    text = render(tmp_path, PLAIN, MESSAGES, form)
    assert text.startswith("[system]")
    assert "Tells it." in text.partition("[user]")[0]
    answer = text.partition("[assistant]")[2]
    assert any(trigger in answer for trigger in TOOL_FORMATS[form].list_triggers(["weather"]))
    assert "Rome" in text
    assert text.endswith("[tool]Sun.>")


def test_the_preamble_joins_a_system_message(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be kind."}, *MESSAGES]
    text = render(tmp_path, PLAIN, messages)
    assert text.startswith("[system]Be kind.\n\nYou may call")
    assert text.count("[system]") == 1


@pytest.mark.parametrize(("form", "apart"), [("hermes", "\n"), ("llama3", "\n\n"), ("glm", "\n")])
def test_tools_are_listed_as_the_format_separates_them(form: str, apart: str) -> None:
    tools = [Tool("f"), Tool("g")]
    listed = apart.join(dump(tool.to_dict()) for tool in tools)
    assert f"\n{listed}" in TOOL_FORMATS[form].write_preamble(tools)


@pytest.mark.parametrize("form", [name for name, each in TOOL_FORMATS.items() if ID in each.call])
def test_the_example_has_an_id_that_the_grammar_allows(form: str) -> None:
    record = TOOL_FORMATS[form]
    at = record.segments.index(ID)
    before, after = map(re.escape, (record.segments[at - 1], record.segments[at + 1]))
    assert re.search(f"{before}{record.ids}{after}", record.write_preamble([Tool("f")]))


def test_a_template_that_lists_tools_but_no_calls_gets_calls_as_text(tmp_path: Path) -> None:
    text = render(tmp_path, "{{ tools | length }}" + PLAIN, MESSAGES)
    assert text.startswith("1[user]Go.[assistant]<tool_call>")
    assert "Rome" in text


@pytest.mark.parametrize("form", [*TOOL_FORMATS, None])
def test_calls_are_not_lost_if_the_model_calls_no_tools(tmp_path: Path, form: str | None) -> None:
    text = render(tmp_path, PLAIN, MESSAGES, form, tools=())
    assert "weather" in text
    assert "Rome" in text


@pytest.mark.parametrize("form", TOOL_FORMATS)
def test_arguments_that_are_no_object_are_written_as_they_are(tmp_path: Path, form: str) -> None:
    text = render(tmp_path, PLAIN, [*MESSAGES[:1], said('{"city": "Ro')], form)
    assert '{"city": "Ro' in text.partition("[assistant]")[2]


def said(*arguments: Any) -> dict[str, Any]:
    """A message that calls a tool with each of these arguments."""
    calls = [
        {**CALL, "id": f"call_{i}", "function": {"name": "weather", "arguments": each}}
        for i, each in enumerate(arguments)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def answer(index: int) -> dict[str, Any]:
    return {"role": "tool", "content": f"Sun {index}.", "tool_call_id": f"call_{index}"}


LOOP = "{% for m in messages %}[{{ m.role }}]{{ m.content }}"
CALLS = LOOP + "{% for c in m.tool_calls or [] %}{% set a = c.function.arguments %}"
END = "{% endfor %}{% endfor %}{{ tools | length }}"
READERS = {
    "as JSON": CALLS + "{{ a | tojson }}" + END,
    "either": CALLS + "{{ a if a is string else a | tojson(ensure_ascii=False) }}" + END,
    "items": CALLS + "{% for k, v in a.items() %}{{ k }}={{ v }};{% endfor %}" + END,
    "pairs": CALLS + "{% for k, v in a | items %}{{ k }}={{ v }};{% endfor %}" + END,
    "sorted": CALLS + "{% for k, v in a | dictsort %}{{ k }}={{ v }};{% endfor %}" + END,
    "text": CALLS + "{{ '```' + a + '```' }}" + END,
}
"""How templates of Llama, Qwen, GLM, Qwen Coder, Gemma and DeepSeek read arguments."""


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("arguments", [{"city": "Rome"}, '{"city": "Rome', "[Rome]", ""])
def test_arguments_of_the_past_in_every_kind_of_template(
    tmp_path: Path, reader: str, arguments: Any
) -> None:
    messages = [MESSAGES[0], said(arguments), answer(0)]
    text = render(tmp_path, READERS[reader], messages)
    assert text.startswith("[user]Go.[assistant]")
    assert text.endswith("[tool]Sun 0.1")
    assert "Rome" in text or not arguments


SINGLE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.tool_calls %}"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('one call') }}{% endif %}"
    "@{{ m.tool_calls[0].function.arguments.city }}{% endif %}{% endfor %}{{ tools | length }}"
)
SHORT = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{% if c.id | length != 9 %}{{ raise_exception('ids') }}{% endif %}{{ c.id }}{% endfor %}"
    "{{ m.tool_call_id }}{% endfor %}{{ tools | length }}"
)
TURNS = (
    "{% for m in messages if m.role != 'system' %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}"
    "{% endfor %}" + PLAIN
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + TURNS
)


def test_a_template_of_single_calls_gets_them_one_by_one(tmp_path: Path) -> None:
    messages = [
        MESSAGES[0],
        said({"city": "Rome"}, {"city": "Oslo"}, {"city": "Bonn"}),
        answer(1),
        answer(0),
        {"role": "user", "content": "And?"},
    ]
    assert render(tmp_path, SINGLE, messages) == (
        "[user]Go.[assistant]@Rome[tool]Sun 0.[assistant]@Oslo[tool]Sun 1.[assistant]@Bonn"
        "[user]And?1"
    )


def test_a_template_of_short_ids_gets_them(tmp_path: Path) -> None:
    text = render(tmp_path, SHORT, [MESSAGES[0], said({}), answer(0)])
    call, _, result = text.removeprefix("[user]Go.[assistant]").partition("[tool]Sun 0.")
    assert (len(call), result) == (9, f"{call}1")


HISTORIES = {
    "two users": [MESSAGES[0], MESSAGES[0]],
    "an assistant first": [{"role": "assistant", "content": "Hi."}, MESSAGES[0]],
    "a late system": [MESSAGES[0], {"role": "system", "content": "Be kind."}, MESSAGES[0]],
    "two systems": [{"role": "system", "content": "Be kind."}] * 2 + [MESSAGES[0]],
    "calls": MESSAGES,
    "calls and text": [MESSAGES[0], {**said("Rome"), "content": "So."}, answer(0), MESSAGES[0]],
    "a result first": [answer(0), MESSAGES[0]],
}


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("source", [TURNS, NO_SYSTEM])
def test_a_template_of_turns_gets_turns(tmp_path: Path, source: str, history: str) -> None:
    messages = HISTORIES[history]
    text = render(tmp_path, source, messages)
    for message in messages:
        assert (message["content"] or "Rome") in text


def test_no_preamble_without_tools(tmp_path: Path) -> None:
    assert render(tmp_path, PLAIN, MESSAGES[:1], tools=()) == "[user]Go.>"


def test_a_refusal_of_the_template_reaches_the_client(tmp_path: Path) -> None:
    with pytest.raises(ChatTemplateError, match="alternate"):
        render(tmp_path, "{{ raise_exception('must alternate') }}", MESSAGES)
    other = tmp_path / "other"  # what a template uses is found once for a folder
    other.mkdir()
    with pytest.raises(ChatTemplateError, match="broken"):
        render(other, "{% if %}", MESSAGES)


def load_with_controls(folder: Path, source: str) -> ModelFiles:
    (folder / "chat_template.jinja").write_text(source)
    tokenizer = Tokenizer(models.WordLevel({"x": 0}, unk_token="x"))
    tokenizer.add_special_tokens(["<|user|>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return ModelFiles(ModelEntry("m", folder), 10, 64, (), 0)


@pytest.mark.parametrize(
    ("source", "is_traced"),
    [
        ("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}", True),
        ("{% for m in messages %}{{ '<|%s|>' % m.role }}{{ m.content }}{% endfor %}", False),
        ("{{ raise_exception('no') }}", True),
    ],
)
def test_a_template_that_loses_its_special_tokens_is_found(
    tmp_path: Path, source: str, is_traced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert can_trace(load_with_controls(tmp_path, source)) is is_traced
    assert bool(caplog.records) is not is_traced


@pytest.mark.parametrize("form", TOOL_FORMATS)
def test_calls_as_text_have_the_special_tokens_of_their_format_alone(
    tmp_path: Path, form: str
) -> None:
    """What the model would have written is trusted, values are not."""
    written = TOOL_FORMATS[form]
    values = {"city": "".join(written.delimiters), "more": [{"x": "<|im_end|>"}]}
    text = written.write(ToolCall("weather", values), ToolCall("weather", {"city": "Rome"}))
    trusted = "".join(c for c, flag in zip(text, text.mask, strict=True) if flag == "1")
    assert "im_end" not in trusted
    for word in ("Rome", "weather", "city", "more"):
        assert word not in trusted
    harmless = written.write(ToolCall("weather", {"city": "Rome"}))
    controls = ControlTokens({mark: i for i, mark in enumerate(written.delimiters)})
    assert controls.split(harmless, harmless.mask) is None
    assert controls.split(text, text.mask) is not None or not written.delimiters


FIRST = LOOP + (
    "{% if m.tool_calls %}@{{ m.tool_calls[0].function.arguments.city }}{% endif %}{% endfor %}"
    "{{ tools | length }}"
)


def test_a_template_that_prints_the_first_call_only_gets_one_a_message(tmp_path: Path) -> None:
    messages = [MESSAGES[0], said({"city": "Rome"}, {"city": "Oslo"}), answer(0), answer(1)]
    text = render(tmp_path, FIRST, messages)
    assert text == "[user]Go.[assistant]@Rome[tool]Sun 0.[assistant]@Oslo[tool]Sun 1.1"


IDS = LOOP + (
    "{% for c in m.tool_calls or [] %}{{ c.id }} {% endfor %}{{ m.tool_call_id }};{% endfor %}"
    "{{ tools | length }}"
)


def test_ids_of_calls_are_those_of_the_models_format(tmp_path: Path) -> None:
    later = {**CALL, "id": "call_9", "function": {"name": "now", "arguments": {}}}
    again = {"role": "assistant", "content": "", "tool_calls": [later]}
    result = {"role": "tool", "content": "Noon.", "tool_call_id": "call_9"}
    messages = [said({}, {}), answer(1), answer(0), again, result]
    assert render(tmp_path, IDS, messages, "kimi_k2") == (
        "[assistant]functions.weather:0 functions.weather:1 ;[tool]Sun 1.functions.weather:1;"
        "[tool]Sun 0.functions.weather:0;[assistant]functions.now:2 ;[tool]Noon.functions.now:2;1"
    )
    assert "call_9" in render(tmp_path, IDS, messages, "hermes")


ELSEWHERE = (
    "{% if documents %}{{ tools }}{% for m in messages %}{{ m.tool_calls }}{% endfor %}{% else %}"
    + PLAIN
    + "{% endif %}"
)


def test_a_template_with_tools_in_another_branch_gets_them_as_text(tmp_path: Path) -> None:
    text = render(tmp_path, ELSEWHERE, MESSAGES)
    assert "weather" in text.partition("[user]")[0]
    assert "weather" in text.partition("[assistant]")[2]
    assert "Rome" in text
    assert render(tmp_path, ELSEWHERE, MESSAGES[:1], tools=()) == "[user]Go.>"


def test_results_that_a_template_leaves_out_are_said_by_the_user(tmp_path: Path) -> None:
    two = "{% for m in messages if m.role in ('user', 'assistant') %}[{{ m.role }}]{{ m.content }}"
    text = render(tmp_path, two + "{% endfor %}>", [*MESSAGES, {"role": "user", "content": "So?"}])
    assert text.endswith("</tool_call>[user]Sun.\n\nSo?>")


def test_what_the_system_says_is_not_left_out(tmp_path: Path) -> None:
    others = "{% for m in messages if m.role != 'system' %}[{{ m.role }}]{{ m.content }}"
    system = {"role": "system", "content": "Be kind."}
    text = render(tmp_path, others + "{% endfor %}>", [system, MESSAGES[0]], tools=())
    assert text == "[user]Be kind.\n\nGo.>"


@pytest.mark.parametrize("part", ["p.text", "p['text']"])
def test_a_template_that_takes_parts_only_gets_parts(tmp_path: Path, part: str) -> None:
    source = (
        "{% for m in messages %}[{{ m.role }}]{% for p in m.content if p['type'] == 'text' %}"
        f"{{{{ {part} }}}}{{% endfor %}}{{% endfor %}}>"
    )
    assert render(tmp_path, source, MESSAGES[:1], tools=()) == "[user]Go.>"
