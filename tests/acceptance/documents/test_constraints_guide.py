"""docs/constraints.md: each task is sent as it is printed; its answer and the printed one fit.

What the model writes is not compared with the page: processors round differently. Both answers must
match the constraint by Quire's own matcher, and by another implementation where they are JSON.
"""

import json
import re
import subprocess
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import jsonschema
import pytest

from tests.acceptance.service import ROOT, Installation

PAGE = (ROOT / "docs" / "constraints.md").read_text()
BLOCK = re.compile(r"^(`{3,})([a-z ]+)\n(.*?)\n\1$", re.MULTILINE | re.DOTALL)
CONSTRAINTS = ("response_format", "structured_outputs", "ebnf", "regex", "json_schema")


class Task(NamedTuple):
    title: str
    grammar: str | None
    """The EBNF that the page shows before the request."""
    request: dict[str, Any]
    answer: str

    def constraint(self) -> dict[str, Any]:
        """The field that constrains the answer; of a call, its arguments."""
        if "tools" in self.request:
            (tool,) = self.request["tools"]
            return {"json_schema": tool["function"]["parameters"]}
        return {name: self.request[name] for name in CONSTRAINTS if name in self.request}

    def constrained(self, text: str) -> str:
        """The part of an answer that the constraint is about."""
        return str(json.loads(text)["arguments"]) if "tools" in self.request else text

    def schema(self) -> Any:
        """The JSON Schema of the answer, or of the line after its thoughts."""
        match self.constraint():
            case {"json_schema": schema}:
                return schema
            case {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}:
                return schema
            case {"response_format": {"format": {"elements": [*_, {"json_schema": schema}]}}}:
                return schema
        return None


def tasks() -> Iterator[Task]:
    for section in PAGE.split("\n## ")[1:]:
        blocks = {language: text for _, language, text in BLOCK.findall(section)}
        if "json request" in blocks:
            answer = blocks.get("json answer") or blocks["text answer"]
            request = json.loads(blocks["json request"])
            yield Task(section.splitlines()[0], blocks.get("ebnf"), request, answer)


TASKS = list(tasks())


def check(http: httpx.Client, task: Task, text: str) -> None:
    """Raises AssertionError or jsonschema's error unless a whole answer fits."""
    text = task.constrained(text)
    body = {"model": task.request["model"], "text": text, **task.constraint()}
    verdict = http.post("/v1/grammars/validate", json=body).raise_for_status().json()
    assert verdict["valid"], verdict
    assert verdict["warnings"] == []
    assert verdict["accepts"], (text, verdict)
    if (schema := task.schema()) is not None:
        value = json.loads(text.splitlines()[-1])
        formats = jsonschema.Draft202012Validator.FORMAT_CHECKER
        jsonschema.Draft202012Validator(schema, format_checker=formats).validate(value)


def test_the_page_has_ten_tasks() -> None:
    assert len(TASKS) == 10
    assert len(TASKS) == PAGE.count("```json request\n")
    for task in TASKS:
        assert task.request.get("ebnf") == task.grammar


@pytest.mark.acceptance
@pytest.mark.parametrize(
    "task",
    [
        pytest.param(task, id=task.title, marks=pytest.mark.long if number else ())
        for number, task in enumerate(TASKS)
    ],
)
def test_a_task_runs_as_printed(http: httpx.Client, task: Task) -> None:
    check(http, task, task.answer)
    with pytest.raises((AssertionError, jsonschema.ValidationError, ValueError)):
        check(http, task, task.answer[:-3] + "}" * task.answer.startswith("{"))
    response = http.post("/v1/chat/completions", json=task.request, timeout=300)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    message = choice["message"]
    # Every constraint of the page is bounded, and max_tokens leaves room for its longest text.
    assert choice["finish_reason"] == ("tool_calls" if "tools" in task.request else "stop")
    if "tools" in task.request:
        (call,) = message["tool_calls"]
        check(http, task, json.dumps(call["function"]))
    else:
        check(http, task, message["content"])


@pytest.mark.acceptance
def test_the_ways_to_send_a_request_run(
    service: Installation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (curl,) = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        ["sh", "-c", curl.replace("http://localhost:8000", service.url)],
        env={"QUIRE_API_KEY": service.key, "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["choices"][0]["message"]["content"] in ("odd", "even")
    # Another block of Python is the answer of a task.
    script, *_ = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    monkeypatch.setenv("QUIRE_API_KEY", service.key)
    names: dict[str, Any] = {}
    exec(script.replace("http://localhost:8000", service.url), names)  # noqa: S102 - our own text
    names["client"].close()
    assert capsys.readouterr().out.strip() in ("odd", "even")
