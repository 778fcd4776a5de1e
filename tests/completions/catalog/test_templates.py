"""Our templates of models that come with an encoder: prompts as the encoders write them."""

from pathlib import Path
from typing import Any

import pytest

from completions.catalog.entries import ModelEntry
from completions.catalog.model_files import ModelFiles
from completions.chat import template
from completions.chat.conversation import render_prompt
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import Tool

BOS, EOS = "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"
USER, ASSISTANT = "<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>"
D = "\uff5cDSML\uff5c"
TOOL = Tool("weather", "Tells it.", {"type": "object"})
FUNCTION = '{"name": "weather", "description": "Tells it.", "parameters": {"type": "object"}}'


def call(name: str, arguments: Any) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": name, "arguments": arguments}}


CALLS = [call("weather", {"city": "Rome <b>", "days": [1, {"a": None}]}), call("now", {})]
TURNS: list[dict[str, Any]] = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b", "reasoning_content": "r1"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "So:", "reasoning_content": "r2", "tool_calls": CALLS},
    {"role": "tool", "content": "Sun", "tool_call_id": "weather"},
    {"role": "tool", "content": "Noon", "tool_call_id": "now"},
]
SYSTEM = [{"role": "system", "content": "S"}]


def render(folder: Path, kind: str, messages: Any, tools: Any = (), **options: Any) -> str:
    model = ModelFiles(ModelEntry("m", folder), 10, 64, (), 0, model_type=kind)
    prompt = options.pop("prompt", True)
    return render_prompt(model, messages, tools, TOOL_FORMATS[kind], options, prompt)


def written(section: str) -> str:
    """The calls, as both versions write them."""
    return (
        f'\n\n<{D}{section}>\n<{D}invoke name="weather">\n'
        f'<{D}parameter name="city" string="true">Rome <b></{D}parameter>\n'
        f'<{D}parameter name="days" string="false">[1, {{"a": null}}]</{D}parameter>\n'
        f'</{D}invoke>\n<{D}invoke name="now">\n\n</{D}invoke>\n</{D}{section}>'
    )


def test_turns_of_deepseek_v32(tmp_path: Path) -> None:
    results = "\n\n<function_results>\n<result>Sun</result>\n<result>Noon</result>"
    results += "\n</function_results>\n\n"
    calls = written("function_calls")
    assert render(tmp_path, "deepseek_v32", SYSTEM + TURNS, thinking=True) == (
        f"{BOS}S{USER}a{ASSISTANT}</think>b{EOS}{USER}c{ASSISTANT}<think>r2</think>So:{calls}{EOS}"
        f"{results}<think>"
    )
    assert render(tmp_path, "deepseek_v32", TURNS) == (
        f"{BOS}{USER}a{ASSISTANT}</think>b{EOS}{USER}c{ASSISTANT}</think>So:{calls}{EOS}"
        f"{results}</think>"
    )
    assert render(tmp_path, "deepseek_v32", TURNS[:3], prompt=False).endswith(f"{EOS}{USER}c")


def test_turns_of_deepseek_v4(tmp_path: Path) -> None:
    results = "<tool_result>Sun</tool_result>\n\n<tool_result>Noon</tool_result>"
    calls = written("tool_calls")
    assert render(tmp_path, "deepseek_v4", SYSTEM + TURNS, thinking=True) == (
        f"{BOS}S{USER}a{ASSISTANT}</think>b{EOS}{USER}c{ASSISTANT}</think>So:{calls}{EOS}"
        f"{USER}{results}{ASSISTANT}<think>"
    )
    said = [*TURNS, {"role": "user", "content": "d"}]
    assert render(tmp_path, "deepseek_v4", said) == (
        f"{BOS}{USER}a{ASSISTANT}</think>b{EOS}{USER}c{ASSISTANT}</think>So:{calls}{EOS}"
        f"{USER}{results}\n\nd{ASSISTANT}</think>"
    )


def test_reasoning_stays_with_tools_in_deepseek_v4(tmp_path: Path) -> None:
    text = render(tmp_path, "deepseek_v4", TURNS, [TOOL], thinking=True)
    assert f"{USER}a{ASSISTANT}<think>r1</think>b{EOS}" in text
    assert f"{ASSISTANT}<think>r2</think>So:" in text


def test_the_greatest_effort_of_deepseek_v4(tmp_path: Path) -> None:
    text = render(tmp_path, "deepseek_v4", TURNS[:1], thinking=True, reasoning_effort="max")
    assert text.startswith(f"{BOS}Reasoning Effort: Absolute maximum")
    assert text.endswith(f"unchecked.\n\n{USER}a{ASSISTANT}<think>")


@pytest.mark.parametrize(
    ("kind", "begin", "end"),
    [
        (
            "deepseek_v32",
            "## Tools\nYou have access to a set of tools you can use",
            f"<functions>\n{FUNCTION}\n{FUNCTION}\n</functions>\n",
        ),
        (
            "deepseek_v4",
            "## Tools\n\nYou have access to a set of tools to help",
            f"### Available Tool Schemas\n\n{FUNCTION}\n{FUNCTION}\n\nYou MUST strictly follow the "
            "above defined tool name and parameter schemas to invoke tool calls.\n",
        ),
    ],
)
def test_tools(tmp_path: Path, kind: str, begin: str, end: str) -> None:
    for system in (SYSTEM, []):
        text = render(tmp_path, kind, system + TURNS[:1], [TOOL, TOOL])
        assert text.startswith(f"{BOS}{'S' if system else ''}\n\n{begin}")
        assert text.endswith(f"{end}{USER}a{ASSISTANT}</think>")


@pytest.mark.parametrize("kind", ["deepseek_v32", "deepseek_v4"])
def test_no_history_is_refused(tmp_path: Path, kind: str) -> None:
    model = ModelFiles(ModelEntry("m", tmp_path), 10, 64, (), 0, model_type=kind)
    for messages in (
        [{"role": "assistant", "content": None, "tool_calls": [call("f", "cut")]}],
        [{"role": "tool", "content": "x"}, *TURNS[:1], *SYSTEM],
    ):
        assert template.render(model, messages, add_generation_prompt=True)
