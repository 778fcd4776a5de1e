"""The demo model calls tools in each format: streamed to the clients of OpenAI, LangChain and the
AI SDK, every call is an instance of its schema."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest

from completions.catalog.entries import TOOL_FORMAT_NAMES
from tests.acceptance.service import MODEL, ROOT, START_TIMEOUT, Installation, free_port

pytestmark = [pytest.mark.acceptance, pytest.mark.long]

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Rome", "Oslo", "東京"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "note": {"type": "string", "maxLength": 12},
        "exact": {"type": "boolean"},
    },
    "required": ["city", "days", "exact"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "weather", "parameters": SCHEMA, "strict": True},
}
LARK = r"""
start: "SELECT " COLUMN (", " COLUMN)~0..2 "\n\tFROM \"" TABLE "\";"
COLUMN: "id" | "name"
TABLE: /[a-z]{1,8}/
"""
QUERY = r'SELECT (id|name)(, (id|name)){0,2}\n\tFROM "[a-z]{1,8}";'
CUSTOM: Any = {
    "type": "custom",
    "custom": {
        "name": "run_sql",
        "format": {"type": "grammar", "grammar": {"syntax": "lark", "definition": LARK}},
    },
}
QUESTION = "The weather in Rome?"
_AI_SDK = Path(__file__).parent / "ai_sdk"
_INSTALLED = ROOT / "var" / "ai_sdk"


@pytest.fixture(scope="module")
def fork(service: Installation) -> Iterator[Callable[[str], str]]:
    """Start a web process for which the demo model has a format, and end the one before. Returns
    its address."""
    with (service.home / "forking_web.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.acceptance.forking_web"], cwd=ROOT, stdin=subprocess.PIPE,
            stdout=log, stderr=log, text=True, env=service.environment,
        )  # fmt: skip

    def start(form: str) -> str:
        models = service.home / f"{form}.toml"
        text = (service.home / "models.toml").read_text()
        models.write_text(text.replace('tool_format = "hermes"', f'tool_format = "{form}"', 1))
        url = f"http://127.0.0.1:{free_port()}"
        assert process.stdin is not None
        process.stdin.write(f"{models} {url.rpartition(':')[2]}\n")
        process.stdin.flush()
        deadline = time.monotonic() + START_TIMEOUT
        while not is_ready(url):
            assert process.poll() is None, (service.home / "forking_web.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return url

    yield start
    process.communicate(timeout=START_TIMEOUT)  # it ends with its input


def is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@pytest.fixture(scope="session")
def ai_sdk() -> Path | None:
    """The folder of the AI SDK, with the versions and checksums of its lock file; None where it
    cannot be fetched."""
    npm = shutil.which("npm")
    if npm is None:
        return None
    _INSTALLED.mkdir(parents=True, exist_ok=True)
    for file in _AI_SDK.iterdir():
        shutil.copy(file, _INSTALLED)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    command += ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
    done = subprocess.run(command, cwd=_INSTALLED, capture_output=True, text=True)
    return None if done.returncode else _INSTALLED


@pytest.mark.parametrize("form", TOOL_FORMAT_NAMES)
def test_calls_in_a_format_are_valid_for_every_client(
    service: Installation, fork: Callable[[str], str], ai_sdk: Path | None, form: str
) -> None:
    url, key = fork(form), service.key
    with service.http() as client:
        found = client.get(f"{url}/v1/models/{MODEL}").json()
    assert found["chat_style"]["tool_format"] == form
    check(ask_with_openai(f"{url}/v1", key))
    assert re.fullmatch(QUERY, ask_for_an_input(f"{url}/v1", key))
    check(ask_with_langchain(f"{url}/v1", key))
    if ai_sdk is None:
        pytest.skip("the rest needs the AI SDK, which npm cannot fetch here")
    check(ask_with_the_ai_sdk(ai_sdk, f"{url}/v1", key))


def check(calls: list[Any]) -> None:
    assert calls
    for name, arguments in calls:
        assert name == "weather"
        jsonschema.validate(arguments, SCHEMA)


def ask_for_an_input(url: str, key: str) -> str:
    """Call a custom tool, and return its input."""
    client = openai.OpenAI(base_url=url, api_key=key, max_retries=0)
    chat: Any = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Query the tables."}],
        tools=[CUSTOM],
        tool_choice={"type": "custom", "custom": {"name": "run_sql"}},
        max_tokens=300,
        seed=1,
    )
    assert chat.choices[0].finish_reason == "tool_calls"
    (call,) = chat.choices[0].message.tool_calls
    assert (call.type, call.custom.name) == ("custom", "run_sql")
    return str(call.custom.input)


def ask_with_openai(url: str, key: str) -> list[Any]:
    client = openai.OpenAI(base_url=url, api_key=key, max_retries=0)
    calls, finish = list[list[str]](), None
    for chunk in client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], tools=[TOOL], seed=1,
        tool_choice="required", parallel_tool_calls=False, max_tokens=300, stream=True,
    ):  # fmt: skip
        for choice in chunk.choices:
            assert not choice.delta.content
            finish = choice.finish_reason or finish
            for piece in choice.delta.tool_calls or ():
                if piece.function.name:
                    calls.append([piece.function.name, ""])
                calls[piece.index][1] += piece.function.arguments or ""
    assert finish == "tool_calls"
    return [(name, json.loads(arguments)) for name, arguments in calls]


def ask_with_langchain(url: str, key: str) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import langchain_openai
    chat: Any = langchain_openai.ChatOpenAI(
        base_url=url, api_key=key, model=MODEL, max_tokens=300, seed=2, max_retries=0
    )
    model = chat.bind_tools([TOOL], tool_choice="required", parallel_tool_calls=False)
    message, *chunks = model.stream(QUESTION)
    for chunk in chunks:
        message += chunk
    assert not message.invalid_tool_calls
    return [(call["name"], call["args"]) for call in message.tool_calls]


def ask_with_the_ai_sdk(folder: Path, url: str, key: str) -> list[Any]:
    done = subprocess.run(
        ["node", "ask.mjs", url, key, MODEL, json.dumps(SCHEMA)], cwd=folder, capture_output=True,
        text=True, timeout=START_TIMEOUT, env={**os.environ, "AI_SDK_LOG_WARNINGS": "false"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    jsonschema.validate(answer["object"], SCHEMA)
    calls: list[Any] = answer["calls"]
    return calls
