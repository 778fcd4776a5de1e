"""Scripted models call tools in each format and think, through the official client."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import ToolCall
from tests.acceptance.chat_client import ANSWER_SCHEMA, NOW, WEATHER, answered, both
from tests.acceptance.scripted_model import THINK, THOUGHT, save_scripted_model
from tests.acceptance.service import Installation

pytestmark = pytest.mark.acceptance


PARIS = ToolCall("get_weather", {"city": 'Par"is\n', "days": 3})


CLOCK = ToolCall("now", {"zone": "UTC"})


FORMS = ("hermes", "llama3", "glm", "qwen3_coder", "kimi_k2")


def _scripts() -> dict[str, str]:
    scripts = {
        "sum": f"{THINK}\ntwo and two\n{THOUGHT}\n\nFour.",
        "json": f'{THINK}simple{THOUGHT}\n{{"answer":4}}',
        "long": f"{THINK}{'on and ' * 30}",
        "plain": "No thoughts.",
    }
    for name in FORMS:
        form = TOOL_FORMATS[name]
        paris = form.write(PARIS)
        scripts[f"{name} one"] = f"I look.\n{paris}"
        scripts[f"{name} two"] = form.write(PARIS, CLOCK)
        scripts[f"{name} thought"] = f"{THINK}ask{THOUGHT}\n\n{paris}"
    return scripts


class ScriptedInstallation(Installation):
    """One scripted folder, served under the name of each format."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, QUIRE_SHUTDOWN_GRACE="1")
        folder = save_scripted_model(home / "scripted", _scripts())
        tables = [
            f'[models.{name}]\npath = "{folder}"\ndtype = "float32"\nmax_num_seqs = 4\n'
            f'max_model_len = {320 * len(_scripts())}\ntool_format = "{name}"\n'
            f'think_tags = ["{THINK}", "{THOUGHT}"]\nthinking_switch = "enable_thinking"\n'
            for name in FORMS
        ]
        (home / "models.toml").write_text("\n".join(tables))


@pytest.fixture(scope="module")
def scripted(tmp_path_factory) -> Iterator[openai.OpenAI]:
    with ScriptedInstallation(tmp_path_factory.mktemp("scripted")) as installation:
        for name in FORMS:
            installation.wait_served(name)
        with installation.client() as client:
            yield client


def ask(client: openai.OpenAI, form: str, script: str, **call: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": script}]
    call = {"max_tokens": 300, "temperature": 0, **call}
    return both(client, model=form, messages=messages, **call)


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_calls_come_back(scripted, form):
    choice = ask(scripted, form, f"{form} one", tools=[WEATHER, NOW])
    ((name, arguments),) = choice["calls"]
    assert (name, json.loads(arguments)) == (PARIS.name, PARIS.arguments)
    assert (choice["content"], choice["finish"]) == ("I look.", "tool_calls")
    choice = ask(scripted, form, f"{form} two", tools=[WEATHER, NOW], tool_choice="required")
    assert [(n, json.loads(a)) for n, a in choice["calls"]] == [
        (PARIS.name, PARIS.arguments),
        (CLOCK.name, CLOCK.arguments),
    ]
    assert choice["content"] == ""


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_stops_do_not_cut_calls(scripted, form):
    stop = ["</tool_call>", "}", '"', "ask"]
    choice = ask(scripted, form, f"{form} thought", tools=[WEATHER], stop=stop)
    ((name, arguments),) = choice["calls"]
    assert (name, json.loads(arguments)) == (PARIS.name, PARIS.arguments)
    assert (choice["reasoning"], choice["content"]) == ("ask", "")
    assert choice["finish"] == "tool_calls"


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_one_call_where_they_may_not_be_parallel(scripted, form):
    choice = ask(
        scripted, form, f"{form} two", tools=[WEATHER, NOW], parallel_tool_calls=False
    )  # fmt: skip
    assert [name for name, _ in choice["calls"]] == ["get_weather"]
    assert choice["finish"] == "tool_calls"


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_thoughts_before_a_call(scripted, form):
    choice = ask(scripted, form, f"{form} thought", tools=[WEATHER])
    assert (choice["reasoning"], choice["content"]) == ("ask", "")
    assert [name for name, _ in choice["calls"]] == ["get_weather"]


@pytest.mark.long
def test_a_call_cut_short_keeps_its_length_finish(scripted):
    choice = ask(scripted, "hermes", "hermes one", tools=[WEATHER], max_tokens=70)
    assert choice["finish"] == "length"
    assert choice["calls"][0][0] == "get_weather"


@pytest.mark.long
def test_without_tools_a_call_is_text(scripted):
    choice = ask(scripted, "hermes", "hermes one", tools=[WEATHER], tool_choice="none")
    assert choice["calls"] == []
    assert "<tool_call>" in choice["content"]


@pytest.mark.long
def test_thoughts_are_separated(scripted):
    choice = ask(scripted, "hermes", "sum")
    assert (choice["reasoning"], choice["content"]) == ("two and two", "Four.")
    usage = answered(
        scripted, model="hermes", messages=[{"role": "user", "content": "sum"}], max_tokens=300
    )["usage"]
    assert usage.completion_tokens_details.reasoning_tokens == 15
    together = ask(scripted, "hermes", "sum", extra_body={"separate_reasoning": False})
    assert together["reasoning"] == ""
    assert together["content"].endswith("Four.")
    whole = ask(scripted, "hermes", "sum", extra_body={"stream_reasoning": False})
    assert whole["reasoning"] == "two and two"


@pytest.mark.long
def test_thoughts_then_a_constrained_answer(scripted):
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": ANSWER_SCHEMA}}
    choice = ask(scripted, "hermes", "json", response_format=wanted)
    assert (choice["reasoning"], json.loads(choice["content"])) == ("simple", {"answer": 4})
    off = {"thinking": {"type": "disabled"}}
    choice = ask(scripted, "hermes", "json", response_format=wanted, extra_body=off)
    assert (choice["reasoning"], set(json.loads(choice["content"]))) == ("", {"answer"})


@pytest.mark.long
def test_a_budget_ends_thoughts(scripted):
    limited = {"thinking": {"type": "enabled", "budget_tokens": 10}}
    choice = ask(scripted, "hermes", "long", extra_body=limited, max_tokens=30)
    assert choice["reasoning"] == "on and on"
    assert choice["content"]


@pytest.mark.long
def test_an_answer_without_thoughts(scripted):
    choice = ask(scripted, "hermes", "plain")
    assert (choice["reasoning"], choice["content"]) == ("", "No thoughts.")
