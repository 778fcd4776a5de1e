"""Messages of a conversation: what each role may say, and everything that a history may hold."""

from types import SimpleNamespace
from typing import Any

import pytest

from completions.exceptions import FieldError
from completions.requests.conversation import ConversationFields
from completions.requests.fields.chat.messages import MAX_NAMED, ChatMessageField

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
READ = {**CALL, "function": {"name": "f", "arguments": {"a": 1}}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [READ]}
FIELD = ConversationFields.fields["messages"]


def read(message: Any) -> Any:
    return ChatMessageField().read(message)


def read_all(messages: Any) -> Any:
    files = SimpleNamespace(max_model_len=100)
    context: Any = SimpleNamespace(model=SimpleNamespace(files=files))
    return FIELD.read(messages, context)


def ignored(*messages: Any) -> list[str]:
    return ConversationFields.messages.list_ignored_paths(list(messages))


def refusal(message: Any) -> tuple[str, str]:
    with pytest.raises(FieldError) as caught:
        read(message)
    return caught.value.code, caught.value.path


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "user", "content": "hi"}, {"role": "user", "content": "hi"}),
        ({"role": "developer", "content": "x"}, {"role": "system", "content": "x"}),
        (
            {
                "role": "user",
                "name": "Ada",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            {"role": "user", "content": "ab", "name": "Ada"},
        ),
        ({"role": "user", "content": ["a", {"text": "b"}]}, {"role": "user", "content": "ab"}),
        ({"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None}, CALLED),
        (
            {"role": "assistant", "content": "x", "reasoning_content": "why"},
            {"role": "assistant", "content": "x", "reasoning_content": "why"},
        ),
        (
            {"role": "tool", "content": "5", "tool_call_id": "c1"},
            {"role": "tool", "content": "5", "tool_call_id": "c1"},
        ),
        ({"content": "x"}, {"role": "user", "content": "x"}),
    ],
)
def test_messages_as_templates_see_them(message: Any, expected: Any) -> None:
    assert read(message) == expected


SAID = {"role": "assistant", "content": "x"}
HEARD = {"role": "user", "content": "x"}
RESULT = {"role": "tool", "content": "x", "tool_call_id": "c1"}
TEXT = {"type": "text", "text": "x"}


def calling(**call: Any) -> dict[str, Any]:
    """A message with one call, whose fields are replaced."""
    return {"role": "assistant", "content": None, "tool_calls": [{**CALL, **call}]}


def function(**fields: Any) -> dict[str, Any]:
    """A message with one call, whose function's fields are replaced."""
    return calling(function={**CALL["function"], **fields})  # type: ignore[dict-item]


HISTORY: list[tuple[str, Any, Any, list[str]]] = [
    # openai-python's parse and stream, openai-node
    ("parsed", {**SAID, "parsed": {"a": 1}}, SAID, ["parsed"]),
    ("parsed, null", {**SAID, "parsed": None}, SAID, []),
    (
        "parsed arguments",
        function(parsed_arguments={"a": 1}),
        CALLED,
        ["tool_calls[0].function.parsed_arguments"],
    ),
    ("index of a call", calling(index=0), CALLED, ["tool_calls[0].index"]),
    ("no calls", {**SAID, "tool_calls": []}, SAID, []),
    ("null calls", {**SAID, "tool_calls": None}, SAID, []),
    ("null function_call", {**SAID, "function_call": None}, SAID, []),
    ("null audio", {**SAID, "audio": None}, SAID, []),
    ("audio", {**SAID, "audio": {"id": "a1"}}, SAID, ["audio"]),
    ("annotations", {**SAID, "annotations": [{"type": "url_citation"}]}, SAID, ["annotations"]),
    ("no annotations", {**SAID, "annotations": []}, SAID, []),
    ("refusal", {**SAID, "content": None, "refusal": "no"}, {**SAID, "content": "no"}, []),
    ("refusal beside content", {**SAID, "refusal": "no"}, SAID, []),
    ("refusal part", {**SAID, "content": [{"type": "refusal", "refusal": "x"}]}, SAID, []),
    (
        "older call",
        {"role": "assistant", "content": None, "function_call": CALL["function"]},
        {**CALLED, "tool_calls": [{"type": "function", "function": READ["function"]}]},
        [],
    ),
    (
        "older result",
        {"role": "function", "name": "f", "content": "x"},
        {"role": "tool", "name": "f", "content": "x"},
        [],
    ),
    (
        "custom call",
        calling(type="custom", function=None, custom={"name": "f", "input": "x"}),
        {
            **CALLED,
            "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {"input": "x"}}}],
        },
        [],
    ),
    # Responses and Anthropic, through proxies
    ("output text", {**SAID, "content": [{"type": "output_text", "text": "x"}]}, SAID, []),
    ("input text", {**HEARD, "content": [{"type": "input_text", "text": "x"}]}, HEARD, []),
    (
        "thinking part",
        {**SAID, "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}, TEXT]},
        SAID,
        ["content[0]"],
    ),
    (
        "redacted part",
        {**SAID, "content": [TEXT, {"type": "redacted_thinking", "data": "s"}]},
        SAID,
        ["content[1]"],
    ),
    (
        "repeated call",
        {**calling(), "content": [{"type": "tool_use", "id": "c1", "input": {}}]},
        CALLED,
        ["content[0]"],
    ),
    (
        "cached part",
        {**HEARD, "content": [{**TEXT, "cache_control": {"type": "ephemeral"}}]},
        HEARD,
        ["content[0].cache_control"],
    ),
    ("cached message", {**HEARD, "cache_control": {"type": "ephemeral"}}, HEARD, ["cache_control"]),
    (
        "cached result",
        {**RESULT, "cache_control": {"type": "ephemeral"}},
        RESULT,
        ["cache_control"],
    ),
    ("annotated part", {**SAID, "content": [{**TEXT, "annotations": []}]}, SAID, []),
    ("id", {**SAID, "id": "msg_1"}, SAID, ["id"]),
    # OpenRouter, vLLM, Ollama, LiteLLM, Azure, LangChain
    ("reasoning", {**SAID, "reasoning": "hm"}, {**SAID, "reasoning_content": "hm"}, []),
    ("reasoning object", {**SAID, "reasoning": {"effort": "low"}}, SAID, ["reasoning"]),
    (
        "empty reasoning",
        {**SAID, "reasoning": ""},
        SAID,
        [],
    ),
    (
        "no reasoning",
        {**SAID, "reasoning_content": ""},
        {**SAID, "reasoning_content": ""},
        [],
    ),
    (
        "reasoning details",
        {**SAID, "reasoning_details": [{"type": "reasoning.text"}]},
        SAID,
        ["reasoning_details"],
    ),
    ("thinking", {**SAID, "thinking": "hm"}, SAID, ["thinking"]),
    ("images", {**SAID, "images": [{"url": "x"}]}, SAID, ["images"]),
    (
        "LiteLLM",
        {**SAID, "provider_specific_fields": {"refusal": None}, "thinking_blocks": [1]},
        SAID,
        ["provider_specific_fields", "thinking_blocks"],
    ),
    (
        "LiteLLM's call",
        calling(caller={"type": "direct"}, provider_specific_fields=None),
        CALLED,
        ["tool_calls[0].caller"],
    ),
    (
        "Azure",
        {**SAID, "content_filter_results": {"hate": {}}, "context": {"citations": []}},
        SAID,
        ["content_filter_results", "context"],
    ),
    (
        "LangChain",
        {**SAID, "additional_kwargs": {}, "response_metadata": {"a": 1}},
        SAID,
        ["response_metadata"],
    ),
    ("null reasoning", {**SAID, "reasoning_content": None}, SAID, []),
    (
        "finish reason",
        {**SAID, "finish_reason": "stop", "index": 0},
        SAID,
        ["finish_reason", "index"],
    ),
    # Nothing where something is usual
    ("null content of an answer", {**SAID, "content": None}, {**SAID, "content": ""}, []),
    ("answer without content", {"role": "assistant"}, {**SAID, "content": ""}, []),
    ("null content of a user", {**HEARD, "content": None}, {**HEARD, "content": ""}, []),
    ("null result", {**RESULT, "content": None}, {**RESULT, "content": ""}, []),
    ("no parts", {**SAID, "content": []}, {**SAID, "content": ""}, []),
    (
        "null text",
        {**SAID, "content": [{"type": "text", "text": None}]},
        {**SAID, "content": ""},
        [],
    ),
    (
        "result without id",
        {"role": "tool", "name": "f", "content": "x"},
        {"role": "tool", "name": "f", "content": "x"},
        [],
    ),
    (
        "call without id",
        calling(id=None),
        {**CALLED, "tool_calls": [{"type": "function", "function": READ["function"]}]},
        [],
    ),
    ("call without type", calling(type=None), CALLED, []),
    (
        "call of no name",
        function(name=None),
        {**CALLED, "tool_calls": [{**READ, "function": {"name": "", "arguments": {"a": 1}}}]},
        [],
    ),
    (
        "long names",
        {**RESULT, "tool_call_id": "c" * 500, "name": "n" * 500},
        {**RESULT, "tool_call_id": "c" * 500, "name": "n" * 500},
        [],
    ),
    # Fields of other roles
    ("user who calls", {**HEARD, "tool_calls": [CALL]}, HEARD, ["tool_calls"]),
    ("user with an id", {**HEARD, "tool_call_id": "c1"}, HEARD, ["tool_call_id"]),
    ("tool that thinks", {**RESULT, "reasoning_content": "y"}, RESULT, ["reasoning_content"]),
    # Names that cannot stand in a header
    ("odd names", {**SAID, "a b\r\nx: é": 1}, SAID, ["a%20b%0D%0Ax%3A%20%C3%A9"]),
]


@pytest.mark.parametrize(
    ("message", "expected", "names"), [row[1:] for row in HISTORY], ids=[row[0] for row in HISTORY]
)
def test_what_clients_and_proxies_send_back(message: Any, expected: Any, names: list[str]) -> None:
    assert read(message) == expected
    assert ignored(message) == [f"messages[0].{name}" for name in names]


@pytest.mark.parametrize(
    "text",
    [
        '{"a": "x',
        '{"a": 1} and so on',
        "[1]",
        "null",
        '{"a": NaN}',
        '{"a": "\n"}',
        "x",
        "  {",
        '{"a": 1, "a": 2}',
        '{"a": 1e999}',
        '{"a": "\\ud800"}',
        f'{{"a": 1{"0" * 5000}}}',
        '{"a": ' + "[" * 300 + "]" * 300 + "}",
        "'",
        "{}{}",
        "",
    ],
)
def test_arguments_of_the_past_are_opaque(text: str) -> None:
    message = read(function(arguments=text))
    assert message["tool_calls"][0]["function"]["arguments"] == (text or {})


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"a": 1}, {"a": 1}),
        (' {"a": 1}\n', {"a": 1}),
        ("", {}),
        (" ", {}),
        (None, {}),
        ([1], "[1]"),
        (1, "1"),
        (True, "true"),
    ],
)
def test_arguments_may_be_an_object_or_missing(arguments: Any, expected: Any) -> None:
    message = read(function(arguments=arguments))
    assert message["tool_calls"][0]["function"]["arguments"] == expected


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("hi", ("invalid_type", "")),
        ({"role": "robot", "content": "x"}, ("invalid_value", "role")),
        ({"role": 1, "content": "x"}, ("invalid_type", "role")),
        ({"role": ["user"], "content": "x"}, ("invalid_type", "role")),
        ({"role": "user"}, ("missing_required_parameter", "content")),
        ({"role": "system", "contents": "x"}, ("missing_required_parameter", "content")),
        ({"role": "user", "content": 3}, ("invalid_type", "content")),
        ({"role": "tool", "content": {"a": 1}}, ("invalid_type", "content")),
        ({"role": "user", "content": [3]}, ("invalid_type", "content[0]")),
        (
            {"role": "user", "content": [{"type": []}]},
            ("missing_required_parameter", "content[0].text"),
        ),
        ({"role": "user", "content": [{"type": ["x"]}]}, ("invalid_type", "content[0].type")),
        (
            {"role": "user", "content": [{"type": "text"}]},
            ("missing_required_parameter", "content[0].text"),
        ),
        (
            {"role": "user", "content": [{"type": "text", "text": 1}]},
            ("invalid_type", "content[0].text"),
        ),
        *[
            (
                {"role": role, "content": [TEXT, {"type": name, name: {"url": "x"}}]},
                ("unsupported_content_type", "content[1].type"),
            )
            for role, name in [
                ("user", "image_url"),
                ("user", "input_audio"),
                ("user", "file"),
                ("user", "video_url"),
                ("tool", "image_url"),
                ("assistant", "image_url"),
            ]
        ],
        ({"role": "assistant", "tool_calls": {}}, ("invalid_type", "tool_calls")),
        (
            {"role": "assistant", "tool_calls": [{"id": "c"}]},
            ("missing_required_parameter", "tool_calls[0].function"),
        ),
    ],
)
def test_what_is_no_message_is_refused_with_its_place(message: Any, error: tuple[str, str]) -> None:
    assert refusal(message) == error


def test_calls_and_results_without_ids_get_them() -> None:
    anonymous = {"function": {"name": "f", "arguments": "{}"}}
    named = [{"role": "tool", "content": str(i)} for i in range(3)]
    read_back = read_all(
        [HEARD, {"role": "assistant", "tool_calls": [anonymous, CALL, anonymous]}, *named, RESULT]
    )
    calls = read_back[1]["tool_calls"]
    assert [call["id"] for call in calls] == ["call_1_0", "c1", "call_1_2"]
    given = [message["tool_call_id"] for message in read_back[2:]]
    assert given == ["call_1_0", "c1", "call_1_2", "c1"]
    assert read_all([HEARD, named[0]])[1]["tool_call_id"] == "call_1"


def test_results_need_no_call_before_them() -> None:
    """Clients trim the beginning of a history, and people interrupt calls."""
    other = {**RESULT, "tool_call_id": "c9"}
    for messages in ([RESULT, HEARD], [HEARD, read(calling()), HEARD, RESULT, RESULT, other]):
        assert len(read_all(messages)) == len(messages)


def test_few_ignored_fields_are_named() -> None:
    assert ignored(*[{**SAID, "parsed": 1}] * MAX_NAMED)[-1] == "messages[15].parsed"
    named = ignored(*[{**SAID, "parsed": 1}] * 2 * MAX_NAMED)
    assert (len(named), named[-1]) == (MAX_NAMED + 1, "...")
    assert ignored({**SAID, "x" * 1000: 1}) == [f"messages[0].{'x' * 64}"]
    assert ConversationFields.messages.list_ignored_paths("a text") == []


def test_more_messages_than_tokens() -> None:
    with pytest.raises(FieldError, match=r"^This model's maximum context length is 100 tokens"):
        read_all([HEARD] * 101)
