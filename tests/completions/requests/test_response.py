"""Bodies of the Responses API: what becomes of items, and what is refused in which words."""

import json
from typing import Any

import pytest
from django.test import Client

from completions.accounts.keys import Principal
from completions.exceptions import APIError
from completions.requests.context import Earlier
from completions.requests.fields.conversions.items import make_messages
from completions.requests.generation import GenerationRequest
from completions.requests.response import ResponsesRequestObject
from completions.responses.compaction import seal

KEY = Principal(1, 1, public_id="k", allowed_models=(), expires_at=None)
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CUSTOM = {"type": "custom", "name": "c"}
LARK = {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'}
USER = {"role": "user", "content": "a"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c", "output": "64 degrees"}


def read(body: dict[str, Any], *earlier: Any) -> GenerationRequest:
    body = {"model": "tiny", "input": "Hi", **body}
    request: GenerationRequest = ResponsesRequestObject().validate_for(
        body, KEY, Earlier(earlier, by_id={"msg_1": {"id": "msg_1", **message("user", "kept")}})
    )
    return request


def message(role: str, text: str) -> dict[str, Any]:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def prompt(request: GenerationRequest) -> str:
    (ids,) = request.job.prompts
    return request.model.files.tokenizer.decode(ids)


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"tools": [{"type": "web_search"}]}, "tools[0].type", "runs no tools of type 'web_search'"),
    ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type", "'mcp'"),
    ({"tools": [{**CUSTOM, "format": {"type": "grammar"}}]}, "tools[0].format.syntax", "required"),
    (
        {"tools": [{**CUSTOM, "format": {"type": "text", "syntax": "lark"}}]},
        "tools[0].format.syntax",
        "no meaning",
    ),
    ({"tools": [TOOL, TOOL]}, "tools[1].function.name", "another tool is named"),
    ({"tool_choice": {"type": "file_search"}}, "tool_choice.type", "must be one of: function"),
    ({"tool_choice": "required"}, "tool_choice", "needs tools"),
    ({"include": ["reasoning.encrypted_content"]}, "include[0]", "reasoning.encrypted_content"),
    ({"reasoning": {"summary": "detailed"}}, "reasoning.summary", "auto, none"),
    ({"reasoning": {"effort": "extreme"}}, "reasoning.effort", "minimal"),
    ({"top_logprobs": 2}, "top_logprobs", "needs include"),
    ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema", "required"),
    (
        {"text": {"format": {"type": "json_schema", "schema": {"maximum": 2**70}}}},
        "text.format.schema",
        "cannot be stored",
    ),
    ({"max_tool_calls": 2**70}, "max_tool_calls", "at most"),
    ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format.schema", "no meaning"),
    ({"text": {"format": {"type": "grammar", "syntax": "lark"}}}, "text.format.definition", "req"),
    ({"metadata": {"a": 1}}, "metadata.a", "a string"),
    ({"metadata": {"a" * 65: ""}}, "metadata", "65 characters"),
    ({"metadata": {"a": "\0"}}, "metadata", "U+0000"),
    ({"metadata": {str(i): "" for i in range(17)}}, "metadata", "17 keys"),
    ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "previous_response_id", "one"),
    ({"conversation": 1}, "conversation", "an id"),
    ({"input": [{"type": "web_search_call"}]}, "input[0].type", "'web_search_call'"),
    ({"input": [{"type": "item_reference", "id": "msg_2"}]}, "input[0].id", "no stored item"),
    ({"input": [{**USER, "content": [{"type": "input_image"}]}]}, "input[0].content[0].type", "te"),
    ({"input": [OUTPUT]}, "input[0].call_id", "No tool call found for function call output with c"),
    ({"input": [CALL, {**OUTPUT, "call_id": "y" * 999}]}, "input[1].call_id", "y. Send the call"),
    ({"input": [{**OUTPUT, "type": "custom_tool_call_output"}]}, "input[0].call_id", "call_id c."),
    ({"input": []}, "input", "required"),
    ({"input": 1}, "input", "an array"),
    ({"prompt": {"id": "p"}}, "prompt", "Send input"),
    ({"messages": [USER]}, "messages", "Use input"),
    ({"stream_options": {"include_obfuscation": True}}, "stream_options", "needs stream"),
    ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
    ({"temprature": 1}, "temprature", "Did you mean temperature?"),
]


@pytest.mark.parametrize(("body", "param", "words"), REFUSED)
def test_what_is_refused(roomy: str, body: dict[str, Any], param: str, words: str) -> None:
    model = {"model": roomy} if "tools" in body else {}
    with pytest.raises(APIError) as caught:
        read({**model, **body})
    assert caught.value.param == param
    assert words in caught.value.message


def test_an_output_follows_its_call_or_a_compaction(served: None) -> None:
    content = seal([message("user", "a")], KEY.organization_id)
    sealed = {"type": "compaction", "encrypted_content": content}
    for earlier, given in (
        ((), [CALL, OUTPUT]),
        ((CALL,), [OUTPUT]),
        ((), [sealed, OUTPUT]),
    ):
        assert "64 degrees" in prompt(read({"input": given}, *earlier))


def test_the_context_is_named_after_the_input(served: None) -> None:
    with pytest.raises(APIError) as caught:
        read({"input": "a" * 200})
    assert caught.value.code == "context_length_exceeded"
    assert ResponsesRequestObject.rename_path(str(caught.value.param)) == "input"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("messages", "input"),
        ("messages[1].content", "input[1].content"),
        ("max_completion_tokens", "max_output_tokens"),
        ("response_format.json_schema.schema", "text.format.schema"),
        ("response_format#/a", "text.format#/a"),
        ("grammar.value", "text.format.definition"),
        ("regex", "text.format.definition"),
        ("tools[2].function.parameters", "tools[2].parameters"),
        ("tools[0].custom.format.grammar.definition", "tools[0].format.definition"),
        ("reasoning_effort", "reasoning.effort"),
        ("temperature", "temperature"),
        ("input[0].type", "input[0].type"),
    ],
)
def test_paths_of_a_chat_are_renamed(path: str, name: str) -> None:
    assert ResponsesRequestObject.rename_path(path) == name


def test_items_become_one_conversation(served: None) -> None:
    request = read(
        {"instructions": "Be kind.", "input": [{"type": "item_reference", "id": "msg_1"}, USER]},
        message("user", "before"),
        message("assistant", "said"),
    )
    text = prompt(request)
    order = ["<system>Be kind.", "<user>before", "<assistant>said", "<user>kept", "<user>a"]
    assert [text.index(part) for part in order] == sorted(text.index(part) for part in order)
    assert request.response is not None
    assert [item["content"][0]["text"] for item in request.response.items] == ["kept", "a"]


def test_reasoning_without_text_is_no_message() -> None:
    items = [{"type": "reasoning", "content": []}, message("user", "q")]
    assert [each["role"] for each in make_messages(items)] == ["user"]


def test_reasoning_and_calls_belong_to_one_message() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'}
    items = [
        message("user", "q"),
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
        message("assistant", "so"),
        call,
        {**call, "call_id": "d"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
        {"type": "function_call_output", "call_id": "d", "output": "2"},
        message("assistant", "one"),
        message("assistant", "two"),
    ]
    messages = make_messages(items)
    roles = ["user", "assistant", "tool", "tool", "assistant", "assistant"]
    assert [each["role"] for each in messages] == roles
    assert messages[1]["content"] == "so"
    assert messages[1]["reasoning_content"] == "hm"
    assert [each["id"] for each in messages[1]["tool_calls"]] == ["c", "d"]
    assert messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert [each["tool_call_id"] for each in messages[2:4]] == ["c", "d"]


def test_truncation_leaves_out_the_oldest_turns(served: None) -> None:
    turns = [
        each
        for i in range(20)
        for each in (message("user", f"q{i:02}"), message("assistant", f"a{i:02}"))
    ]
    body = {"instructions": "Be kind.", "max_output_tokens": 5, "input": "last"}
    with pytest.raises(APIError):
        read(body, *turns)
    request = read({**body, "truncation": "auto"}, *turns)
    text = prompt(request)
    assert "<system>Be kind." in text
    assert text.index("<user>") == text.index("<user>q")  # a turn is whole
    assert "a19" in text
    assert "q00" not in text
    (ids,) = request.job.prompts
    kept = text.count("<user>q")
    assert kept >= 1
    assert len(ids) + 5 <= 128 < len(ids) + 5 + len("<user>q00\n<assistant>a00\n") + 4
    with pytest.raises(APIError):
        read({"truncation": "auto", "input": "a" * 200}, *turns)


def test_fields_of_a_chat_mean_the_same(roomy: str) -> None:
    request = read(
        {
            "model": roomy,
            "tools": [TOOL],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "f"}],
            },
            "parallel_tool_calls": False,
            "max_output_tokens": 7,
            "temperature": 0.5,
            "top_k": 3,
            "include": ["message.output_text.logprobs"],
            "top_logprobs": 2,
            "max_tool_calls": 3,
            "close": True,
            "reasoning": {"effort": "low", "summary": "auto"},
            "text": {"verbosity": "low"},
        }
    )
    assert request.chat is not None
    assert request.chat.calls is not None
    assert request.chat.calls.choice.names == ("f",)
    assert request.chat.calls.choice.parallel is False
    assert (request.job.sampling.max_tokens, request.job.sampling.temperature) == (7, 0.5)
    assert request.logprobs.top == 2
    assert request.close is True
    unused = {"max_tool_calls", "reasoning.summary", "text.verbosity", "reasoning.effort"}
    # An effort has no effect, because the end tag of thoughts is many tokens here.
    assert {ResponsesRequestObject.rename_path(path) for path in request.ignored} == unused
    assert request.response is not None
    shown = request.response.shown
    assert shown["tools"] == [{**TOOL, "description": None, "strict": False}]
    assert shown["reasoning"] == {"effort": "low", "summary": None}
    assert json.dumps(shown)


def test_custom_tools_are_those_of_a_chat(roomy: str) -> None:
    custom = {**CUSTOM, "description": "Say a.", "format": LARK}
    choice = {"type": "custom", "name": "c"}
    body = {"model": roomy, "tools": [TOOL, custom], "tool_choice": choice}
    call = {"type": "custom_tool_call", "call_id": "x", "name": "c", "input": "a"}
    output = {"type": "custom_tool_call_output", "call_id": "x", "output": "b"}
    request = read({**body, "input": [USER, call, output, USER]})
    assert request.chat is not None
    assert request.chat.calls is not None
    tool = request.chat.calls.tools[-1]
    assert tool.grammar is not None
    assert (tool.name, tool.grammar.syntax) == ("c", "lark")
    assert request.response is not None
    assert request.response.shown["tools"][1] == custom
    assert [item["type"] for item in request.response.items] == [
        "message", "custom_tool_call", "custom_tool_call_output", "message",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("form", "field", "value"),
    [
        (
            {"type": "json_schema", "name": "a", "schema": {"type": "null"}, "strict": True},
            "response_format",
            {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"type": "null"}, "strict": True},
            },
        ),
        ({"type": "json_object"}, "response_format", {"type": "json_object"}),
        (
            {"type": "grammar", "syntax": "lark", "definition": 'start: "a"'},
            "grammar",
            {"type": "lark", "value": 'start: "a"'},
        ),
        ({"type": "grammar", "syntax": "regex", "definition": "a"}, "regex", "a"),
        ({"type": "grammar", "syntax": "ebnf", "definition": 'root ::= "a"'}, "ebnf", None),
    ],
)
def test_formats_are_constraints(served: None, form: Any, field: str, value: Any) -> None:
    request = read({"text": {"format": form}})
    assert request.constraint is not None
    assert request.constraint.field == field
    assert request.constraint.value == (value or form["definition"])
    assert read({"text": {"format": {"type": "text"}}}).constraint is None


def test_a_format_is_shown_with_its_defaults(served: None) -> None:
    form = {"type": "json_schema", "name": "a", "schema": {"type": "null"}}
    shown = read({"text": {"format": form}}).response.shown["text"]["format"]  # type: ignore[union-attr]
    assert shown == {**form, "description": None, "strict": False}


def test_a_name_that_only_chats_have_is_refused_by_this_name(api: Client) -> None:
    body = {"model": "tiny", "input": "Hi", "response_format": {"type": "json_object"}}
    refused = api.post("/v1/responses", body, content_type="application/json").json()["error"]
    assert (refused["code"], refused["param"]) == ("unsupported_parameter", "response_format")


def test_a_bad_grammar_is_named_after_its_field(api: Client) -> None:
    form = {"type": "grammar", "syntax": "regex", "definition": "("}
    body = {"model": "tiny", "input": "Hi", "text": {"format": form}}
    refused = api.post("/v1/responses", body, content_type="application/json").json()["error"]
    assert (refused["code"], refused["param"]) == ("invalid_grammar", "text.format.definition")


@pytest.mark.usefixtures("chat_models")
def test_a_stored_response_holds_the_items_of_an_unstored_one_before_it() -> None:
    """Nothing else has them; but those of a stored one stay there."""
    said = {"id": "msg_1", **message("assistant", "Ho")}
    body = {"model": "caller", "input": "Hi", "previous_response_id": "resp_1"}
    for is_local, count, previous in ((True, 2, ""), (False, 1, "resp_1")):
        earlier = Earlier([said], is_local=is_local)
        response = ResponsesRequestObject().validate_for(body, KEY, earlier).response
        assert response is not None
        assert (len(response.items), response.previous_id) == (count, previous)
        assert "id" not in response.items[0]
