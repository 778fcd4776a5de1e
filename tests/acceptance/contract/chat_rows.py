"""Rows of tools and of thoughts."""

import json

from tests.acceptance.contract.answers import CHAT, Answer
from tests.acceptance.contract.rows import (
    ABSENT,
    BAD,
    BOOLEAN,
    INTEGER,
    MESSAGES,
    MISSING,
    NOW,
    TEXT,
    TOO_LOW,
    TYPE,
    Check,
    Refused,
    Row,
    ids,
    ignored,
    rendered,
    row,
    wrong,
)
from tests.acceptance.service import MODEL


def called(answer: Answer, _: Answer | None) -> None:
    for choice in answer.choices:
        (call,) = choice["tool_calls"]
        assert (call["type"], call["function"]["name"]) == ("function", "now")
        assert json.loads(call["function"]["arguments"]) == {"n": 1}
        assert call["id"].startswith("call_")
        assert choice["finish_reason"] == "tool_calls"
        assert choice["text"] == ""


def written(answer: Answer, _: Answer | None) -> None:
    assert all(answer.texts)


def thought(answer: Answer, _: Answer | None) -> None:
    for choice in answer.choices:
        assert choice["reasoning_content"] == choice["reasoning"]
        assert choice["reasoning"]
    reasoning = answer.usage["completion_tokens_details"]["reasoning_tokens"]
    assert 0 < reasoning == answer.usage["reasoning_tokens"]


def not_separated(answer: Answer, _: Answer | None) -> None:
    assert all(text.startswith("<think>") for text in answer.texts)
    assert all("reasoning_content" not in choice for choice in answer.choices)


def in_one_piece(answer: Answer, _: Answer | None) -> None:
    thought(answer, None)
    for index in range(answer.form.choices):
        pieces = [
            choice["delta"]["reasoning_content"]
            for chunk in answer.chunks
            for choice in chunk["choices"]
            if choice["index"] == index and "reasoning_content" in choice["delta"]
        ]
        assert len(pieces) == 1 if answer.form.stream else not pieces


def loud(answer: Answer, _: Answer | None) -> None:
    assert all(prompt[:2] == ids("LOUD ")[:2] for prompt in answer.each("prompt_token_ids"))


def prompts_end(text: str) -> Check:
    def check(answer: Answer, _: Answer | None) -> None:
        assert answer.each("prompt_token_ids") == [ids(text)] * answer.form.choices

    return check


NAMED = {"type": "function", "function": {"name": "now"}}


ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}


CALLING = {"tools": [NOW], "tool_choice": NAMED, "max_tokens": 100, "ignore_eos": False}


THINKING = {"thinking": {"type": "enabled", "budget_tokens": 4}, "max_tokens": 12}


ROWS: list[Row] = [
    row(
        "tools",
        [NOW],
        called,
        [
            *wrong("tools", 1, {}),
            *wrong("tools", [NOW] * 129, code="array_above_max_length"),
            *wrong("tools", [NOW, NOW], code=BAD, at="tools[1].function.name"),
            *wrong(
                "tools",
                [{"type": "function", "function": {"name": "a b"}}],
                code=BAD,
                at="tools[0].function.name",
            ),
        ],
        CALLING,
        routes=[CHAT],
    ),
    *[
        row("tool_choice", choice, called, refused, CALLING, routes=[CHAT])
        for choice, refused in [
            (
                "required",
                [
                    *wrong("tool_choice", "required", "sometimes", code=BAD),
                    *[
                        Refused({"tools": [NOW], "tool_choice": given}, code, at)
                        for given, code, at in [
                            (
                                {"type": "function", "function": {"name": "nobody"}},
                                BAD,
                                "tool_choice",
                            ),
                            ({"type": "function"}, MISSING, "tool_choice.function"),
                            (1, TYPE, "tool_choice"),
                        ]
                    ],
                    Refused({**CALLING, "regex": "a"}, "conflicting_constraints", "regex"),
                ],
            ),
            (NAMED, []),
            (ALLOWED, []),
        ]
    ],
    row(
        "parallel_tool_calls",
        False,
        called,
        wrong("parallel_tool_calls", *BOOLEAN),
        {**CALLING, "tool_choice": "required"},
        routes=[CHAT],
    ),
    row(
        "modalities",
        ["text"],
        written,
        [
            *wrong("modalities", "text", 1, {}),
            *wrong("modalities", ["audio"], code=BAD, at="modalities[0]"),
            *wrong("modalities", ["text", "text"], code="array_above_max_length"),
        ],
        routes=[CHAT],
    ),
    row(
        "thinking",
        {"type": "enabled", "budget_tokens": 4},
        thought,
        [
            *wrong("thinking", 1, []),
            *wrong("thinking", {}, code=MISSING, at="thinking.type"),
            *wrong("thinking", {"type": "maybe"}, code=BAD, at="thinking.type"),
            *wrong(
                "thinking",
                {"type": "enabled", "budget_tokens": 0},
                code=TOO_LOW,
                at="thinking.budget_tokens",
            ),
            Refused(
                {"thinking": {"type": "enabled"}}, "unsupported_value", "thinking.type", model=MODEL
            ),
        ],
        THINKING,
        routes=[CHAT],
    ),
    row("thinking", {"type": "enabled"}, thought, beside={"max_tokens": 12}, routes=[CHAT]),
    row("thinking", {"type": "disabled"}, rendered, routes=[CHAT]),
    row(
        "chat_template_kwargs",
        {"loud": True},
        loud,
        [
            *wrong("chat_template_kwargs", 1, []),
            *wrong(
                "chat_template_kwargs",
                {"messages": []},
                code=BAD,
                at="chat_template_kwargs.messages",
            ),
            *wrong("chat_template_kwargs", {"a b": 1}, code=BAD, at="chat_template_kwargs.a b"),
            *wrong("chat_template_kwargs", {f"v{i}": 1 for i in range(65)}, code=BAD),
            Refused({"chat_template_kwargs": {"enable_thinking": True}}, BAD, "thinking.type"),
        ],
        routes=[CHAT],
    ),
    row(
        "chat_template_kwargs",
        {"of_another_model": True},
        ignored("chat_template_kwargs.of_another_model"),
        routes=[CHAT],
    ),
    row(
        "reasoning_effort",
        "high",
        thought,
        wrong("reasoning_effort", 1, []) + wrong("reasoning_effort", "most", code=BAD),
        {"thinking": ABSENT, "max_tokens": 12},
        routes=[CHAT],
    ),
    row("reasoning_effort", "high", ignored("reasoning_effort"), routes=[CHAT]),
    row(
        "thinking_token_budget",
        4,
        thought,
        [
            *wrong("thinking_token_budget", *INTEGER),
            *wrong("thinking_token_budget", 0, code=TOO_LOW),
            *wrong("thinking_token_budget", 4, code=BAD),  # thinking is disabled
        ],
        {"thinking": {"type": "enabled"}, "max_tokens": 12},
        routes=[CHAT],
    ),
    row("verbosity", "low", ignored("verbosity"), wrong("verbosity", *TEXT), routes=[CHAT]),
    row(
        "add_generation_prompt",
        False,
        prompts_end("user: hello\n"),
        wrong("add_generation_prompt", *BOOLEAN),
        routes=[CHAT],
    ),
    row(
        "continue_final_message",
        True,
        prompts_end("user: hello\nassistant: ab"),
        [
            *wrong("continue_final_message", *BOOLEAN),
            Refused(
                {"continue_final_message": True, "add_generation_prompt": True},
                BAD,
                "continue_final_message",
            ),
        ],
        {"messages": [*MESSAGES, {"role": "assistant", "content": "ab"}]},
        routes=[CHAT],
    ),
    row(
        "separate_reasoning",
        False,
        not_separated,
        wrong("separate_reasoning", *BOOLEAN),
        THINKING,
        routes=[CHAT],
    ),
    row(
        "stream_reasoning",
        False,
        in_one_piece,
        wrong("stream_reasoning", *BOOLEAN),
        THINKING,
        routes=[CHAT],
    ),
]
