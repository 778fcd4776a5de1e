"""Chat templates of the packages, rendered as `apply_chat_template` does."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from completions.catalog.entries import ModelEntry
from completions.catalog.model_files import ModelFiles
from completions.chat import template
from completions.chat.chat_style import find_chat_style
from completions.chat.conversation import render_prompt
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import Tool
from tests.completions.chat import reading
from tests.conformance.tokenizers.conftest import or_skip
from tests.conformance.tokenizers.families import FAMILIES, Family
from tests.conformance.tokenizers.packages import fetched

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "東京 & <more>"}},
    "required": ["city"],
}
TOOLS = (Tool("weather", 'Says "more" é', PARAMETERS), Tool("now", "The time.", {"type": "object"}))
ARGUMENTS = {"city": "東京 <x>", "n": [1, None, True]}
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}


def says(role: str, content: str | None, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


PLAIN: Mapping[str, list[dict[str, Any]]] = {
    "one": [says("user", "Hi <b> & 'é' \n")],
    "system": [says("system", "Be brief."), says("user", "Hi")],
    "several": [says("user", "a"), says("assistant", " b "), says("user", " c\n")],
    "thoughts": [
        says("user", "a"), says("assistant", "<think>\nhm\n</think>\n\nb"), says("user", "c"),
    ],
    "apart": [says("user", "a"), says("assistant", "b", reasoning_content="hm")],
}  # fmt: skip
CALLED = [
    says("user", "?"), says("assistant", "", tool_calls=[CALL, CALL]),
    says("tool", "sunny", tool_call_id="1"), says("tool", "warm", tool_call_id="2"),
]  # fmt: skip


class Sides:
    """A family's template, here and there."""

    def __init__(self, family: Family) -> None:
        self.folder: Path = fetched(family.package)
        self.model = ModelFiles(ModelEntry("m", self.folder), family.rows, 512, family.ends, 0)
        self.reference: Any = AutoTokenizer.from_pretrained(self.folder)

    def render(self, messages: list[dict[str, Any]], prompt: bool, **options: Any) -> list[str]:
        """The same conversation by both; a refusal is the word `refused`."""
        tools = options.pop("tools", None)
        try:
            ours = template.render(
                self.model, messages, add_generation_prompt=prompt, tools=tools, options=options
            )
        except template.ChatTemplateError:
            ours = "refused"
        try:
            theirs = self.reference.apply_chat_template(
                messages, tools=tools, add_generation_prompt=prompt, tokenize=False, **options
            )
        except Exception:  # noqa: BLE001 - templates raise what they like
            theirs = "refused"
        return [ours, theirs]


@pytest.fixture(scope="module", params=[each for each in FAMILIES if each.has_template], ids=str)
def sides(request: pytest.FixtureRequest) -> Sides:
    return Sides(or_skip(request.param))


@pytest.mark.parametrize("name", PLAIN)
def test_a_conversation(sides: Sides, name: str) -> None:
    for prompt in (True, False):
        for options in ({}, {"enable_thinking": False}):
            ours, theirs = sides.render(PLAIN[name], prompt, **options)
            assert ours == theirs != "refused"


def test_a_conversation_with_tools(sides: Sides) -> None:
    tools = [tool.to_dict() for tool in TOOLS]
    for messages in (PLAIN["one"], PLAIN["system"], CALLED):
        for given in (None, tools):
            ours, theirs = sides.render(messages, True, tools=given)
            assert ours == theirs


def test_a_conversation_of_unknown_roles_is_refused_by_both(sides: Sides) -> None:
    ours, theirs = sides.render([says("assistant", "x"), says("assistant", "y")], True)
    assert ours == theirs


@pytest.mark.parametrize("family", [each for each in FAMILIES if each.tool_format], ids=str)
def test_tools_and_calls_are_in_the_prompt(family: Family) -> None:
    folder = fetched(or_skip(family).package)
    model = ModelFiles(ModelEntry("m", folder), family.rows, 512, family.ends, 0)
    written = TOOL_FORMATS[str(family.tool_format)]
    messages = [{**message} for message in CALLED]
    messages[1]["content"] = None  # as OpenAI's clients send a call back
    text = render_prompt(model, messages, TOOLS, written, {})
    assert '"description": "東京 & <more>"' in text or '"description":"東京 & <more>"' in text
    assert max(map(text.count, written.list_triggers(["weather"]))) >= 2
    assert "None" not in text
    assert "sunny" in text


FOUND = {"qwen3": "hermes", "deepseek_v3": "deepseek_v3"}
"""The formats in templates, by package; the others describe no calls."""


@pytest.mark.parametrize("family", [each for each in FAMILIES if each.has_template], ids=str)
def test_the_format_of_calls_is_found_in_the_template(family: Family) -> None:
    folder = fetched(or_skip(family).package)
    model = ModelFiles(ModelEntry("m", folder), family.rows, 512, family.ends, 0)
    found = find_chat_style(model).tool_format
    assert (found.name if found else None) == FOUND.get(str(family))


@pytest.mark.parametrize("family", [each for each in FAMILIES if str(each) in FOUND], ids=str)
def test_calls_that_a_template_writes_are_read_back(family: Family) -> None:
    folder = fetched(or_skip(family).package)
    model = ModelFiles(ModelEntry("m", folder), family.rows, 512, family.ends, 0)
    written = TOOL_FORMATS[FOUND[str(family)]]
    text = render_prompt(model, CALLED, TOOLS, written, {})
    calls = reading.read(FOUND[str(family)], [text], TOOLS).calls
    assert [(name, json.loads(said)) for name, said in calls] == [("weather", ARGUMENTS)] * 2


def history(*arguments: Any) -> list[dict[str, Any]]:
    """A conversation that goes on after one message with a call for each of these arguments."""
    calls = [
        {**CALL, "id": f"call_{i}", "function": {"name": "weather", "arguments": each}}
        for i, each in enumerate(arguments)
    ]
    results = [says("tool", f"sunny {i}", tool_call_id=f"call_{i}") for i in range(len(calls))]
    return [
        says("system", "Be brief."), says("user", "Where?"),
        says("assistant", None, tool_calls=calls), *results,
        says("assistant", "There."), says("user", "Sure?"),
    ]  # fmt: skip


HISTORIES: Mapping[str, list[dict[str, Any]]] = {
    "an object": history({"city": "Rome"}),
    "two calls": history({"city": "Rome"}, {}),
    "a call that was cut": history('{"city": "Rome'),
    "a list": history('["Rome"]'),
    "an open call": [*history({"city": "Rome"})[:3], says("user", "Where, sunny?")],
    "no call": [says("user", "Where?"), says("tool", "sunny, Rome", tool_call_id="1")],
    "two users": [says("user", "Where?"), says("user", "Rome, sunny?")],
    "an assistant first": [says("assistant", "sunny, Rome"), says("user", "Where?")],
    "a late system": [says("user", "Where?"), says("system", "sunny, Rome"), says("user", "?")],
}


@pytest.mark.parametrize("name", HISTORIES)
def test_no_history_is_refused_and_nothing_of_it_is_lost(sides: Sides, name: str) -> None:
    for tools in (TOOLS, ()):
        for written in (*TOOL_FORMATS.values(), None):
            text = render_prompt(sides.model, HISTORIES[name], tools, written, {})
            assert all(word in text for word in ("Where", "Rome", "sunny"))
            assert "None" not in text
