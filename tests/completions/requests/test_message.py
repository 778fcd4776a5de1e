"""Bodies of the Messages API: what becomes of turns, and what is refused in which words."""

from typing import Any

import pytest
from django.test import Client

from completions.accounts.keys import Principal
from completions.exceptions import APIError
from completions.requests.generation import GenerationRequest
from completions.requests.message import (
    CountTokensRequestObject,
    MessagesRequestObject,
)
from completions.requests.preparation import find_route

KEY = Principal(1, 1, public_id="k", allowed_models=(), expires_at=None)
TOOL = {"name": "f", "input_schema": {"type": "object"}}
USER = {"role": "user", "content": "a"}
BODY = {"model": "tiny", "max_tokens": 4, "messages": [USER]}


def read(**body: Any) -> GenerationRequest:
    request: GenerationRequest = MessagesRequestObject().validate_for({**BODY, **body}, KEY)
    return request


def count(**body: Any) -> int:
    asked = {"model": "tiny", "messages": [USER], **body}
    number, _ = CountTokensRequestObject().validate_for(asked, KEY)
    return int(number)


def prompt(request: GenerationRequest) -> str:
    (ids,) = request.job.prompts
    return request.model.files.tokenizer.decode(ids)


def said(role: str, *blocks: Any) -> dict[str, Any]:
    return {"role": role, "content": list(blocks)}


IMAGE = {"type": "image", "source": {"type": "url", "url": "http://a"}}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"max_tokens": None}, "max_tokens", "required"),
    ({"max_tokens": 0}, "max_tokens", "at least 1"),
    ({"max_tokens": 4000}, "messages", "maximum context length"),
    ({"messages": []}, "messages", "at least 1"),
    ({"messages": "a"}, "messages", "an array"),
    ({"messages": [{"content": "a"}]}, "messages[0].role", "required"),
    ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role", "user, assistant"),
    ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content", "array of blocks"),
    ({"messages": [said("user", IMAGE)]}, "messages[0].content[0].type", "'image'"),
    ({"messages": [said("user", {"type": "document"})]}, "messages[0].content[0].type", "send one"),
    ({"messages": [said("user", "a")]}, "messages[0].content[0]", "an object"),
    (
        {"messages": [USER, said("assistant", {"type": "tool_result", "tool_use_id": "t"})]},
        "messages[1].content[0].type",
        "'tool_result'",
    ),
    (
        {
            "messages": [
                said("user", {"type": "tool_result", "tool_use_id": "t", "content": [IMAGE]})
            ]
        },
        "messages[0].content[0].content[0].type",
        "'image'",
    ),
    ({"messages": [said("user", {"type": "text"})]}, "messages[0].content[0].text", "required"),
    (
        {"messages": [USER, said("assistant", {"type": "tool_use", "id": "t", "name": "f"})]},
        "messages[1].content[0].input",
        "required",
    ),
    ({"messages": [USER, {"role": "assistant", "content": ""}]}, "messages", "no text"),
    ({"system": [IMAGE]}, "system[0].type", "'image'"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type", "'bash_20250124'"),
    ({"tools": [{"type": "web_search_20260209", "name": "w"}]}, "tools[0].type", "run it yourself"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema", "required"),
    ({"tools": [{**TOOL, "input_schema": {"type": "array"}}]}, "tools[0].input_schema.type", "obj"),
    ({"tools": [{**TOOL, "defer_loading": True}]}, "tools[0].defer_loading", "not supported"),
    ({"tools": [TOOL, TOOL]}, "tools[1].name", "another tool is named"),
    ({"tool_choice": {"type": "any"}}, "tool_choice", "needs tools"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name", "required with type tool"),
    ({"tool_choice": {"type": "auto", "name": "f"}}, "tool_choice.name", "no meaning"),
    ({"tool_choice": {"type": "required"}}, "tool_choice.type", "auto, any, tool, none"),
    (
        {"tool_choice": {"type": "none", "disable_parallel_tool_use": True}},
        "tool_choice.disable_parallel_tool_use",
        "no meaning",
    ),
    ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, "thinking.type", "does not think"),
    ({"thinking": {"type": "adaptive", "budget_tokens": 9}}, "thinking.budget_tokens", "no mean"),
    ({"thinking": {"type": "disabled", "display": "omitted"}}, "thinking.display", "summarized"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema", "req"),
    ({"output_config": {"effort": "extreme"}}, "output_config.effort", "minimal"),
    ({"stop_sequences": [""]}, "stop_sequences[0]", "1-256"),
    ({"stop_sequences": ["a"] * 17}, "stop_sequences", "at most 16"),
    ({"temperature": 3}, "temperature", "at most 2"),
    ({"container": "c"}, "container", "runs no code"),
    ({"mcp_servers": [{"url": "http://a"}]}, "mcp_servers", "calls no tools"),
    ({"context_management": {"edits": [1]}}, "context_management", "Send the messages"),
    ({"stop": ["a"]}, "stop", "Use stop_sequences"),
    ({"service_tier": "flex"}, "service_tier", "auto, standard_only"),
    ({"max_token": 1}, "max_token", "Did you mean max_tokens?"),
]


@pytest.mark.parametrize(("body", "param", "words"), REFUSED)
def test_what_is_refused(roomy: str, served: None, body: Any, param: str, words: str) -> None:
    model = {"model": roomy} if "tools" in body else {}
    with pytest.raises(APIError) as caught, find_route("/v1/messages").rename_errors():
        read(**model, **body)
    assert caught.value.param == param, caught.value.message
    assert words in caught.value.message


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("messages[1].content", "messages[1].content"),
        ("max_completion_tokens", "max_tokens"),
        ("continue_final_message", "messages"),
        ("stop[1]", "stop_sequences[1]"),
        ("stop_sequences[1]", "stop_sequences[1]"),
        ("reasoning_effort", "output_config.effort"),
        ("response_format.json_schema.schema", "output_config.format.schema"),
        ("response_format#/a", "output_config.format#/a"),
        ("tools[2].function.parameters#/a", "tools[2].input_schema#/a"),
        ("tools[2].function.name", "tools[2].name"),
        ("thinking.budget_tokens", "thinking.budget_tokens"),
    ],
)
def test_paths_of_a_chat_are_renamed(path: str, name: str) -> None:
    assert MessagesRequestObject.rename_path(path) == name


def test_turns_become_one_conversation(roomy: str) -> None:
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}}
    request = read(
        model=roomy,
        tools=[TOOL],
        system=[{"type": "text", "text": "Be "}, {"type": "text", "text": "kind."}],
        messages=[
            USER,
            said(
                "assistant",
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                call,
                {**call, "id": "u"},
            ),
            said(
                "user",
                {"type": "tool_result", "tool_use_id": "t", "content": "noon"},
                {
                    "type": "tool_result",
                    "tool_use_id": "u",
                    "content": [{"type": "text", "text": "night"}],
                    "is_error": True,
                },
                {"type": "text", "text": "So?", "cache_control": {"type": "ephemeral"}},
            ),
        ],
    )
    text = prompt(request)
    order = ["Be kind.", "a", "I look.", "noon", "night", "So?"]
    places = [text.index(part) for part in order]
    assert places == sorted(places), text
    assert request.ignored == (
        "messages[1].content[1]",
        "messages[2].content[1].is_error",
        "messages[2].content[2].cache_control",
    )


def test_an_answer_is_continued(served: None) -> None:
    text = prompt(read(messages=[USER, {"role": "assistant", "content": "The best is ("}]))
    assert text.endswith("The best is (")


def test_fields_of_a_chat_mean_the_same(roomy: str) -> None:
    request = read(
        model=roomy,
        tools=[{**TOOL, "type": "custom", "description": "d", "cache_control": {"type": "e"}}],
        tool_choice={"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        max_tokens=7,
        temperature=0.5,
        top_k=3,
        top_p=0.9,
        stop_sequences=["\n\nHuman:"],
        metadata={"user_id": "u"},
        service_tier="auto",
        thinking={"type": "adaptive", "display": "summarized"},
        stream=True,
    )
    assert request.chat is not None
    assert request.chat.calls is not None
    choice = request.chat.calls.choice
    assert (choice.mode, choice.names, choice.parallel) == ("required", ("f",), False)
    sampling = request.job.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_k) == (7, 0.5, 3)
    assert sampling.stop == ("\n\nHuman:",)
    assert request.returns.stream
    unused = {"metadata", "service_tier", "tools[0].cache_control", "thinking.display"}
    assert set(request.ignored) == unused


def test_many_ignored_paths_are_cut(served: None) -> None:
    block = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    *names, last = read(messages=[said("user", *[block] * 30)]).ignored
    assert (len(names), last) == (16, "...")


def test_a_format_is_a_constraint(served: None) -> None:
    form = {"type": "json_schema", "schema": {"type": "null"}}
    request = read(output_config={"format": form, "effort": "max"})
    assert request.constraint is not None
    assert request.constraint.field == "response_format"
    assert request.ignored == ("reasoning_effort",)  # the model does not think


def test_tokens_are_counted(roomy: str) -> None:
    whole = {"system": "Be kind.", "tools": [TOOL], "model": roomy}
    (ids,) = read(**whole).job.prompts
    assert count(**whole) == len(ids) > count(model=roomy)
    assert count(messages=[{"role": "user", "content": "a" * 5000}]) > 5000  # beyond the context


def test_a_bad_schema_is_named_after_its_field(api: Client) -> None:
    form = {"type": "json_schema", "schema": {"type": "nothing"}}
    body = {**BODY, "output_config": {"format": form}}
    answer = api.post("/v1/messages", body, content_type="application/json")
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["details"]["param"].startswith("output_config.format")
