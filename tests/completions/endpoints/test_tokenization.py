from dataclasses import replace
from typing import Any

import pytest
from django.test import Client
from pytest_django.fixtures import Settings

from completions.catalog import model_files
from completions.endpoints import tokenization
from completions.requests.chat import ChatRequestObject
from tests.completions.conftest import TINY_CONTEXT
from tests.completions.requests.validating import ANYONE

LONGEST = 4
"""Characters of the tiny model's longest token."""
BOS, EOS = 256, 257


def post(api: Client, path: str, **body: Any) -> Any:
    return api.post(f"/v1/{path}", {"model": "tiny", **body}, content_type="application/json")


def error(api: Client, path: str, **body: Any) -> tuple[int, str, str]:
    response = post(api, path, **body)
    failure = response.json()["error"]
    return response.status_code, failure["code"], failure["param"]


@pytest.mark.parametrize("text", ["", "hello", "grüße 中文 🙂", "</s> in the text"])
def test_round_trip(api: Client, text: str) -> None:
    body = post(api, "tokenize", prompt=text, add_special_tokens=False).json()
    assert body["count"] == len(body["tokens"])
    assert body["max_model_len"] == TINY_CONTEXT
    assert post(api, "detokenize", tokens=body["tokens"]).json() == {"prompt": text}


def test_several_texts_have_an_array_each(api: Client) -> None:
    texts = ["hello", "", "</s> 中文"]
    body = post(api, "tokenize", prompt=texts, add_special_tokens=False).json()
    alone = [post(api, "tokenize", prompt=text, add_special_tokens=False).json() for text in texts]
    assert body["tokens"] == [each["tokens"] for each in alone]
    assert body["count"] == [each["count"] for each in alone]
    assert post(api, "tokenize", prompt=["a"]).json()["tokens"] == [
        post(api, "tokenize", prompt="a").json()["tokens"]
    ]


@pytest.mark.parametrize(
    ("prompt", "code", "param"),
    [
        ([], "empty_array", "prompt"),
        (["a"] * 257, "array_above_max_length", "prompt"),
        (["a", 1], "invalid_type", "prompt[1]"),
        (["a" * 1024 * 600] * 2, "invalid_value", "prompt"),
        ({}, "invalid_type", "prompt"),
    ],
)
def test_what_texts_are_refused(api: Client, prompt: Any, code: str, param: str) -> None:
    assert error(api, "tokenize", prompt=prompt) == (400, code, param)


def test_special_tokens(api: Client) -> None:
    tokens = post(api, "tokenize", prompt="a").json()["tokens"]
    assert tokens[0] == BOS
    assert (
        post(api, "tokenize", prompt="a", add_special_tokens=False).json()["tokens"] == tokens[1:]
    )
    assert post(api, "tokenize", prompt="</s>", add_special_tokens=False).json()["tokens"] == [EOS]
    assert post(api, "detokenize", tokens=[BOS, EOS]).json() == {"prompt": "<s></s>"}


def test_messages_go_through_the_template(api: Client) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]},
    ]
    tokens = post(api, "tokenize", messages=messages).json()["tokens"]
    assert tokens.count(BOS) == 1  # the template's own, not the tokenizer's too
    expected = "<s><system>Be brief.</s>\n<user>Hi</s>\n"
    assert post(api, "detokenize", tokens=tokens).json()["prompt"] == f"{expected}<assistant>"
    tokens = post(api, "tokenize", messages=messages, add_generation_prompt=False).json()["tokens"]
    assert post(api, "detokenize", tokens=tokens).json()["prompt"] == expected


def test_messages_hold_no_special_tokens_but_the_templates(api: Client, settings: Settings) -> None:
    messages = [{"role": "user", "content": "a</s><s>b"}]
    body = post(api, "tokenize", messages=messages).json()
    assert (body["tokens"].count(BOS), body["tokens"].count(EOS)) == (1, 1)
    assert body["count"] == len(body["tokens"])
    written = post(api, "detokenize", tokens=body["tokens"]).json()["prompt"]
    assert written == "<s><user>a</s><s>b</s>\n<assistant>"
    settings.SPECIAL_TOKENS_IN_CONTENT = "allow"
    tokens = post(api, "tokenize", messages=messages).json()["tokens"]
    assert (tokens.count(BOS), tokens.count(EOS)) == (2, 2)
    assert post(api, "detokenize", tokens=tokens).json()["prompt"] == written


CALL = {"id": "1", "function": {"name": "f", "arguments": '{"a": "b"}'}}
CALLING = [
    {"content": "u"},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "r"},
]
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": CALLING},
        {"messages": [{"role": "developer", "content": "d", "name": "n"}]},
        {"messages": CALLING[:1], "tools": TOOLS},
        {"messages": CALLING[:1], "tools": TOOLS, "tool_choice": "none"},
        {"messages": CALLING[:1], "thinking": {"type": "auto"}, "chat_template_kwargs": {"x": 1}},
        {"messages": "<s>as it is"},
    ],
)
def test_messages_are_those_of_a_chat(
    api: Client, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any]
) -> None:
    load = model_files.load
    with monkeypatch.context() as patch:  # the preamble of tools is longer than the context
        patch.setattr(model_files, "load", lambda entry: replace(load(entry), max_model_len=4096))
        chat = ChatRequestObject().validate_for({"model": "texts", **body}, ANYONE)
        response = post(api, "tokenize", **{"model": "texts", **body})
    assert response.json()["tokens"] == list(chat.job.prompts[0])
    assert response.headers.get("x-ignored-params", "") == ", ".join(chat.ignored)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"messages": CALLING[1:], "tools": TOOLS}, "unsupported_parameter", "tools"),
        (
            {"messages": CALLING, "chat_template_kwargs": {"tools": 1}},
            "invalid_value",
            "chat_template_kwargs.tools",
        ),
        (
            {"messages": CALLING, "thinking": {"type": "enabled"}},
            "unsupported_value",
            "thinking.type",
        ),
        ({"messages": CALLING, "tool_choice": "required"}, "invalid_value", "tool_choice"),
        (
            {"messages": CALLING, "thinking": {"type": "auto", "budget_tokens": 5}},
            "unsupported_value",
            "thinking.budget_tokens",
        ),
        ({"messages": "a", "add_special_tokens": False}, "invalid_value", "add_special_tokens"),
        ({"prompt": "a", "tools": TOOLS}, "invalid_value", "tools"),
        ({"messages": "a", "tool_choice": "none"}, "invalid_value", "tool_choice"),
        ({"prompt": "a", "chat_template_kwargs": {}}, "invalid_value", "chat_template_kwargs"),
        ({"messages": CALLING, "chat_template": "x"}, "unsupported_parameter", "chat_template"),
        (
            {"messages": CALLING, "continue_final_message": True},
            "unsupported_parameter",
            "continue_final_message",
        ),
        (
            {"messages": CALLING, "return_token_strs": True},
            "unsupported_parameter",
            "return_token_strs",
        ),
    ],
)
def test_refused_conversations(api: Client, body: dict[str, Any], code: str, param: str) -> None:
    assert error(api, "tokenize", **body) == (400, code, param)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({}, "missing_required_parameter", "prompt"),
        (
            {"prompt": "a", "messages": [{"role": "user", "content": ""}]},
            "invalid_value",
            "messages",
        ),
        ({"prompt": 1}, "invalid_type", "prompt"),
        ({"prompt": "a", "add_special_tokens": 1}, "invalid_type", "add_special_tokens"),
        ({"prompt": "a", "promt": "b"}, "unknown_parameter", "promt"),
        ({"messages": []}, "empty_array", "messages"),
        ({"messages": [1]}, "invalid_type", "messages[0]"),
        ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
        ({"messages": [{"role": "x", "content": ""}]}, "invalid_value", "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "unsupported_content_type",
            "messages[0].content[0].type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "missing_required_parameter",
            "messages[0].content[0].text",
        ),
    ],
)
def test_refused_tokenize(api: Client, body: dict[str, Any], code: str, param: str) -> None:
    assert error(api, "tokenize", **body) == (400, code, param)


@pytest.mark.parametrize(
    ("tokens", "code", "param"),
    [
        (None, "missing_required_parameter", "tokens"),
        ("1", "invalid_type", "tokens"),
        ([1, "2"], "invalid_type", "tokens[1]"),
        ([260], "invalid_token_id", "tokens[0]"),
        ([-1], "invalid_token_id", "tokens[0]"),
    ],
)
def test_refused_detokenize(api: Client, tokens: Any, code: str, param: str) -> None:
    assert error(api, "detokenize", tokens=tokens) == (400, code, param)


def test_a_model_must_exist_and_have_files(api: Client) -> None:
    assert error(api, "tokenize", prompt="a", model="none")[:2] == (404, "model_not_found")
    assert error(api, "tokenize", prompt="a", model="absent")[:2] == (503, "model_loading")


def test_a_key_is_needed(client: Client, api: Client) -> None:
    assert post(Client(), "tokenize", prompt="a").status_code == 401


def test_a_huge_text_is_refused_before_it_is_tokenized(
    api: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenization, "MAX_CHARACTERS", 0)
    beyond = "x" * (LONGEST * TINY_CONTEXT + 1)
    assert error(api, "tokenize", prompt=beyond) == (400, "context_length_exceeded", "prompt")
    messages = [{"role": "user", "content": beyond}]
    found = error(api, "tokenize", messages=messages)
    assert found == (400, "context_length_exceeded", "messages")
    assert post(api, "tokenize", prompt=beyond[1:]).status_code == 200
    monkeypatch.setattr(tokenization, "MAX_CHARACTERS", len(beyond))
    assert post(api, "tokenize", prompt=beyond).status_code == 200
