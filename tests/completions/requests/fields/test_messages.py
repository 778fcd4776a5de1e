"""Messages of a conversation: what each role may say, and which calls tools may answer."""

import pytest

from completions.exceptions import FieldError
from completions.requests.fields.messages import ChatMessageObject, check_answers

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def read(message):
    return ChatMessageObject().read(message)


def refusal(message):
    with pytest.raises(FieldError) as caught:
        read(message)
    return caught.value.code, caught.value.path


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "user", "content": "hi"}, {"role": "user", "content": "hi"}),
        ({"role": "developer", "content": "x"}, {"role": "system", "content": "x"}),
        (
            {"role": "user", "name": "Ada",
             "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "user", "content": "ab", "name": "Ada"},
        ),
        (
            {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
            {"role": "assistant", "content": None, "tool_calls": [
                {**CALL, "function": {"name": "f", "arguments": {"a": 1}}}]},
        ),
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
)  # fmt: skip
def test_messages_as_templates_see_them(message, expected):
    assert read(message) == expected


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ({"role": "robot", "content": "x"}, ("invalid_value", "role")),
        ({"role": "user"}, ("missing_required_parameter", "content")),
        ({"role": "assistant", "tool_calls": []}, ("missing_required_parameter", "content")),
        ({"role": "user", "content": 3}, ("invalid_type", "content")),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            ("unsupported_content_type", "content[0].type"),
        ),
        ({"role": "user", "content": "x", "tool_calls": [CALL]}, ("invalid_value", "tool_calls")),
        (
            {"role": "user", "content": "x", "reasoning_content": "y"},
            ("invalid_value", "reasoning_content"),
        ),
        (
            {"role": "user", "content": "x", "tool_call_id": "y"},
            ("invalid_value", "tool_call_id"),
        ),
        ({"role": "tool", "content": "x"}, ("missing_required_parameter", "tool_call_id")),
        ({"role": "user", "content": "x", "audio": {}}, ("unsupported_parameter", "audio")),
        ({"role": "user", "content": "x", "rolle": 1}, ("unknown_parameter", "rolle")),
        (
            {"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]},
            ("invalid_value", "tool_calls[0].type"),
        ),
        (
            {"role": "assistant",
             "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{"}}]},
            ("invalid_value", "tool_calls[0].function.arguments"),
        ),
        (
            {"role": "assistant",
             "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "[1]"}}]},
            ("invalid_type", "tool_calls[0].function.arguments"),
        ),
    ],
)  # fmt: skip
def test_refusals_name_the_place(message, error):
    assert refusal(message) == error


def test_arguments_may_be_an_object_or_empty():
    for given, expected in [({"a": 1}, {"a": 1}), ("", {})]:
        call = {"id": "c", "function": {"name": "f", "arguments": given}}
        message = read({"role": "assistant", "tool_calls": [call]})
        assert message["tool_calls"][0]["function"]["arguments"] == expected


def conversation(*answers):
    calls = [{**CALL, "id": name} for name in ("c1", "c2")]
    return [
        read({"role": "user", "content": "x"}),
        read({"role": "assistant", "tool_calls": calls}),
        *(read({"role": "tool", "content": "y", "tool_call_id": each}) for each in answers),
    ]


def test_tools_answer_the_calls_before_them():
    check_answers(conversation("c2", "c1"))
    check_answers(conversation())
    for answers, place in [
        (("c3",), "messages[2]"),
        (("c1", "c1"), "messages[3]"),
    ]:
        with pytest.raises(FieldError) as caught:
            check_answers(conversation(*answers))
        assert caught.value.path == f"{place}.tool_call_id"
    late = [*conversation(), read({"role": "user", "content": "x"}), *conversation("c1")[2:]]
    with pytest.raises(FieldError):
        check_answers(late)
