"""Conversations into prompts: templates that know tools, and templates that do not."""

from pathlib import Path
from typing import Any

import pytest

from completions.catalog.entries import ModelEntry
from completions.catalog.model_files import ModelFiles
from completions.chat.conversation import prompt_text
from completions.chat.template import ChatTemplateError
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import Tool, dump

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}>"
KNOWS = (
    "{{ tools | tojson }}{% for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments.city }}{% endfor %}{% endfor %}"
    "{% if fast %}!{% endif %}>"
)
TOOLS = (Tool("weather", "Tells it.", {"type": "object"}),)
CALL = {
    "id": "c", "type": "function", "function": {"name": "weather", "arguments": {"city": "Rome"}},
}  # fmt: skip
MESSAGES = [
    {"role": "user", "content": "Go."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "Sun.", "tool_call_id": "c"},
]


def render(folder: Path, source: str, messages: Any, form: str | None = "hermes", **kw: Any) -> str:
    (folder / "chat_template.jinja").write_text(source)
    model = ModelFiles(ModelEntry("m", folder), 10, 64, (), 0)
    tools = kw.pop("tools", TOOLS)
    return prompt_text(model, messages, tools, TOOL_FORMATS[form] if form else None, kw)


def test_a_template_that_knows_tools_gets_them(tmp_path: Path) -> None:
    text = render(tmp_path, KNOWS, MESSAGES, fast=True)
    assert text.startswith('[{"type": "function", "function": {"name": "weather",')
    assert text.endswith("[user]Go.[assistant]Rome[tool]Sun.!>")


def test_a_template_may_search_the_text_of_a_message_without_any(tmp_path: Path) -> None:
    source = (
        "{% for m in messages %}{% if '</think>' in m.content %}thought{% endif %}"
        "{{ '[' + m.role + ']' + m.content }}{% endfor %}{{ tools | length }}"
    )
    assert render(tmp_path, source, MESSAGES) == "[user]Go.[assistant][tool]Sun.1"


@pytest.mark.parametrize("form", TOOL_FORMATS)
def test_a_template_that_does_not_gets_text(tmp_path: Path, form: str) -> None:
    text = render(tmp_path, PLAIN, MESSAGES, form)
    assert text.startswith("[system]")
    assert "Tells it." in text.partition("[user]")[0]
    assert TOOL_FORMATS[form].opening in text.partition("[assistant]")[2]
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
    listed = apart.join(dump(tool.as_dict()) for tool in tools)
    assert f"\n{listed}" in TOOL_FORMATS[form].preamble(tools)


def test_no_preamble_without_tools(tmp_path: Path) -> None:
    assert render(tmp_path, PLAIN, MESSAGES[:1], tools=()) == "[user]Go.>"


def test_a_refusal_of_the_template_reaches_the_client(tmp_path: Path) -> None:
    with pytest.raises(ChatTemplateError, match="alternate"):
        render(tmp_path, "{{ raise_exception('must alternate') }}", MESSAGES)
    with pytest.raises(ChatTemplateError, match="broken"):
        render(tmp_path, "{% if %}", MESSAGES)
