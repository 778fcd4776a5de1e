"""A family's whole vocabulary over HTTP."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.service import Installation
from tests.conformance.tokenizers.conftest import or_skip
from tests.conformance.tokenizers.families import FAMILIES

pytestmark = [pytest.mark.acceptance, pytest.mark.long]

MODEL = "qwen3"
[FAMILY] = [family for family in FAMILIES if str(family) == MODEL]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"const": "e\u0301 東京"}, "n": {"type": "integer", "maximum": 99}},
    "required": ["name", "n"],
    "additionalProperties": False,
}
CONSTRAINTS: tuple[dict[str, Any], ...] = (
    {"json_schema": SCHEMA},
    {"regex": "[東京é😀 ]{20}"},
    {"ebnf": 'root ::= "é" Token("<|im_start|>") [0-9]{3} "<|im_start|>"'},
)
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object", "properties": {"city": {"enum": ["Rome", "東京"]}},
            "required": ["city"], "additionalProperties": False,
        },
    },
}  # fmt: skip


class OneModel(Installation):
    """The family's tiny model alone."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, QUIRE_SHUTDOWN_GRACE="1")
        folder = home / "model"
        folder.mkdir()
        FAMILY.save(folder)
        (home / "models.toml").write_text(
            f'[models.{MODEL}]\npath = "{folder}"\ntext_prompts = true\ndtype = "float32"\n'
            f'tool_format = "{FAMILY.tool_format}"\nthink_tags = ["<think>", "</think>"]\n'
            'thinking_switch = "enable_thinking"\n'
        )


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    or_skip(FAMILY)
    with OneModel(tmp_path_factory.mktemp("service")) as installation:
        installation.wait_served(MODEL)
        yield installation


def post(service: Installation, path: str, **body: Any) -> dict[str, Any]:
    with service.http() as client:
        answer = client.post(path, json={"model": MODEL, **body})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


def test_tokens_of_a_constrained_completion_spell_its_text(service: Installation) -> None:
    for constraint in CONSTRAINTS:
        body = {"prompt": "Say: ", "seed": 3, "max_tokens": 90, "logprobs": 2, **constraint}
        [choice] = post(service, "/v1/completions", **body)["choices"]
        assert choice["finish_reason"] == "stop"
        if "json_schema" in constraint:
            assert json.loads(choice["text"])["name"] == "e\u0301 東京"
        elif "regex" in constraint:
            assert re.fullmatch("[東京é😀 ]{20}", choice["text"])
        else:
            assert re.fullmatch(r"é[0-9]{3}<\|im_start\|>", choice["text"])
        with service.http() as client:
            stream = client.post("/v1/completions", json={"model": MODEL, **body, "stream": True})
        chunks = [
            json.loads(line.removeprefix("data: "))
            for line in stream.text.splitlines()
            if line.startswith("data: {")
        ]
        parts = [each["text"] for chunk in chunks for each in chunk["choices"]]
        assert "".join(parts) == choice["text"]


def test_a_chat_calls_a_tool_and_takes_its_answer(service: Installation) -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Weather?"}], "tools": [TOOL],
        "tool_choice": "required", "max_tokens": 200, "seed": 3, "parallel_tool_calls": False,
        "chat_template_kwargs": {"enable_thinking": False}, "logprobs": True,
    }  # fmt: skip
    [choice] = post(service, "/v1/chat/completions", **body)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    [call] = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"])["city"] in ("Rome", "東京")
    told = b"".join(bytes(token["bytes"]) for token in choice["logprobs"]["content"]).decode()
    assert told.startswith("<tool_call>")
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    answer = {"role": "tool", "tool_call_id": call["id"], "content": "Sun."}
    body |= {"messages": [*body["messages"], said, answer], "tool_choice": "none",
             "regex": "[a-z]{3} é"}  # fmt: skip
    [choice] = post(service, "/v1/chat/completions", **body)["choices"]
    assert re.fullmatch("[a-z]{3} é", choice["message"]["content"])


def test_thoughts_end_with_their_budget(service: Installation) -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Think."}], "max_tokens": 60, "seed": 3,
        "thinking": {"type": "enabled", "budget_tokens": 5}, "regex": "[a-z]{3} é",
    }  # fmt: skip
    found = post(service, "/v1/chat/completions", **body)
    [choice] = found["choices"]
    assert re.fullmatch("[a-z]{3} é", choice["message"]["content"])
    told = found["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < told <= 5 + 2  # the thoughts and both marks


def test_text_and_tokens_of_the_whole_vocabulary(service: Installation) -> None:
    text = "two  spaces 東京 <|im_start|> <think>"
    ids = post(service, "/v1/tokenize", prompt=text)["tokens"]
    assert post(service, "/v1/detokenize", tokens=ids)["prompt"] == text
