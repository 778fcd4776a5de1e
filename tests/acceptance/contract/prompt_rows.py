"""Rows of the prompt in all its forms, and of fields that change it."""

from collections.abc import Callable
from typing import Any

from tests.acceptance.contract.answers import CHAT, COMPLETIONS, Answer
from tests.acceptance.contract.rows import (
    ABSENT,
    ALL_A,
    BAD,
    BAD_ID,
    BOOLEAN,
    EMPTY,
    MESSAGES,
    MISSING,
    NOW,
    PROMPTS,
    TEXT,
    TOKENIZER,
    TOO_LONG,
    TYPE,
    Refused,
    Row,
    ids,
    ignored,
    rendered,
    row,
    wrong,
)
from tests.acceptance.service import MODEL
from tests.acceptance.small_model import ADAPTER, CONTEXT, FIM, SMALL

RAW = {"messages": ABSENT, "thinking": ABSENT}


LONG = "a" * 100


def prompts_are(*wanted: list[int]) -> Callable[[Answer, Answer | None], None]:
    """Check the prompts of the choices, and that the usage counts each prompt once."""

    def check(answer: Answer, _: Answer | None) -> None:
        found = [choice["prompt_token_ids"] for choice in answer.choices]
        assert found == [list(prompt) for prompt in wanted for _ in range(answer.form.n)]
        assert answer.usage["prompt_tokens"] == sum(map(len, wanted))
        assert (
            answer.usage["total_tokens"]
            == answer.usage["prompt_tokens"] + answer.usage["completion_tokens"]
        )

    return check


def prompts_as_sent(answer: Answer, _: Answer | None) -> None:
    prompts_are(*PROMPTS[: answer.form.prompts])(answer, None)
    assert answer.each("index") == list(range(answer.form.choices))
    cost = answer.usage["cost_details"]
    assert answer.usage["cost"] > 0
    assert set(cost) == {"prompt", "cached_prompt", "completion"}


def echoed(answer: Answer, _: Answer | None) -> None:
    for text, prompt in zip(answer.texts, answer.each("prompt_token_ids"), strict=True):
        assert text == TOKENIZER.decode(prompt) + "aaaa"


def truncated(answer: Answer, _: Answer | None) -> None:
    assert answer.usage["prompt_tokens"] == CONTEXT - 4
    assert answer.body["meta"]["truncated_prompt_tokens"] == 600 - (CONTEXT - 4)


def gap(answer: Answer, _: Answer | None) -> None:
    prefix, suffix, middle = (ids(mark)[0] for mark in FIM)
    for choice in answer.choices:
        prompt = PROMPTS[choice["index"] // answer.form.n]
        assert choice["prompt_token_ids"] == [prefix, *prompt, suffix, *ids("b"), middle]


def names_itself(answer: Answer, _: Answer | None) -> None:
    assert answer.body["model"] == f"{SMALL}:{ADAPTER}"


def bad_prompt(value: Any, code: str, at: str = "prompt", **options: Any) -> Refused:
    return Refused({"prompt": value}, code, at, **options)


# Contract 2.1, row by row.
PROMPT_REFUSALS = [
    Refused({"prompt": ABSENT}, MISSING, "prompt"),
    bad_prompt(None, MISSING),
    bad_prompt([], EMPTY),
    bad_prompt([[]], EMPTY, "prompt[0]"),
    bad_prompt([[1], []], EMPTY, "prompt[1]"),
    bad_prompt("hello", "text_prompt_not_supported", model=MODEL),
    bad_prompt(["hello"], "text_prompt_not_supported", model=MODEL),
    bad_prompt(["1"], "text_prompt_not_supported", "prompt[0]", model=MODEL),
    bad_prompt([1, "2"], "mixed_prompt", "prompt[1]"),
    bad_prompt([1, "hello"], "mixed_prompt", "prompt[1]"),
    bad_prompt([[1], "a"], "mixed_prompt", "prompt[1]"),
    bad_prompt([[1], 2], "mixed_prompt", "prompt[1]"),
    bad_prompt([True], TYPE, "prompt[0]"),
    bad_prompt([1, False], TYPE, "prompt[1]"),
    bad_prompt([1.0], TYPE, "prompt[0]"),
    bad_prompt([1.5], TYPE, "prompt[0]"),
    bad_prompt([None], TYPE, "prompt[0]"),
    bad_prompt({}, TYPE),
    bad_prompt(9703, TYPE),
    bad_prompt(True, TYPE),
    bad_prompt([-1], BAD_ID, "prompt[0]"),
    bad_prompt([1, 2, 3, 396], BAD_ID, "prompt[3]"),
    bad_prompt([2**70], BAD_ID, "prompt[0]"),
    bad_prompt([[[1]]], TYPE, "prompt[0][0]"),
    bad_prompt([1] * CONTEXT, TOO_LONG),
    bad_prompt([1] * (CONTEXT - 3), TOO_LONG),
    bad_prompt([[1]] * 257, "array_above_max_length"),
]


ROWS: list[Row] = [
    row(
        "model",
        SMALL,
        prompts_as_sent,
        [
            Refused({"model": ABSENT}, MISSING, "model"),
            Refused({"model": None}, MISSING, "model"),
            Refused({"model": "default"}, BAD, "model"),
            *wrong("model", *TEXT),
            Refused({"model": "nobody"}, "model_not_found", "model", 404),
            Refused({"model": f"{SMALL}:nobody"}, "adapter_not_found", "model", 404),
        ],
        routes=[COMPLETIONS],
    ),
    row(
        "model",
        f"{SMALL}:{ADAPTER}",
        names_itself,
        [Refused({"model": "nobody"}, "model_not_found", "model", 404)],
    ),
    Row("prompt", lambda form: {}, prompts_as_sent, [COMPLETIONS], PROMPT_REFUSALS),
    row("prompt", [0], prompts_are([0]), routes=[COMPLETIONS], fits=lambda form: form.prompts == 1),
    row(
        "prompt",
        "ab",
        prompts_are(ids("ab")),
        routes=[COMPLETIONS],
        fits=lambda form: form.prompts == 1,
    ),
    row(
        "prompt",
        ["ab", "c"],
        prompts_are(ids("ab"), ids("c")),
        routes=[COMPLETIONS],
        fits=lambda form: form.prompts == 2,
    ),
    row("echo", True, echoed, wrong("echo", *BOOLEAN), ALL_A, routes=[COMPLETIONS]),
    row(
        "truncate_sequence",
        True,
        truncated,
        wrong("truncate_sequence", *BOOLEAN),
        {"prompt": [5] * 600},
        routes=[COMPLETIONS],
        fits=lambda form: form.prompts == 1,
        headers={"x-include-meta": "1"},
    ),
    row(
        "suffix",
        "b",
        gap,
        [
            *wrong("suffix", *TEXT),
            Refused({"suffix": "b"}, "unsupported_parameter", "suffix", model=MODEL),
            Refused({"suffix": "b", "echo": True}, BAD, "suffix"),
        ],
        routes=[COMPLETIONS],
    ),
    *[
        row(name, given, ignored(name), refused, beside, routes=[COMPLETIONS])
        for name, given, refused, beside in [
            (
                "tools",
                [NOW],
                [*wrong("tools", 1, {}), *wrong("tools", [NOW], code="unsupported_parameter")],
                {"tool_choice": "none"},
            ),
            (
                "tool_choice",
                "none",
                [
                    *wrong("tool_choice", 1, {}),
                    *wrong("tool_choice", "auto", code="unsupported_parameter"),
                ],
                {},
            ),
            ("parallel_tool_calls", False, wrong("parallel_tool_calls", *BOOLEAN), {}),
        ]
    ],
    row(
        "messages",
        MESSAGES,
        rendered,
        [
            Refused({"messages": ABSENT}, MISSING, "messages"),
            *wrong("messages", 1, {}),
            *wrong("messages", [], code=EMPTY),
            *wrong("messages", [1], at="messages[0]"),
            *wrong(
                "messages", [{"role": "robot", "content": "x"}], code=BAD, at="messages[0].role"
            ),
            *wrong("messages", [{"role": "user"}], code=MISSING, at="messages[0].content"),
            *wrong(
                "messages",
                [{"role": "user", "content": [{"type": "image_url"}]}],
                code="unsupported_content_type",
                at="messages[0].content[0].type",
            ),
            *wrong("messages", [{"role": "user", "content": LONG * 6}], code=TOO_LONG),
        ],
        routes=[CHAT],
    ),
    row(
        "messages",
        [{"content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}],
        rendered,
        routes=[CHAT],
    ),
    row("messages", "ab", prompts_are(ids("ab")), beside={"thinking": ABSENT}, routes=[CHAT]),
    row(
        "prompt",
        "ab",
        prompts_are(ids("ab")),
        [
            Refused({"prompt": "x"}, BAD, "prompt"),
            Refused({**RAW, "prompt": 3}, TYPE, "prompt"),
            Refused({**RAW, "prompt": []}, EMPTY, "prompt"),
            Refused({**RAW, "prompt": [396]}, BAD_ID, "prompt[0]"),
        ],
        RAW,
        routes=[CHAT],
    ),
    row(
        "input_ids",
        [5, 6],
        prompts_are([5, 6]),
        [
            *[
                Refused({**RAW, "input_ids": given}, code, at)
                for given, code, at in [
                    ("x", TYPE, "input_ids"),
                    ([], EMPTY, "input_ids"),
                    ([396], BAD_ID, "input_ids[0]"),
                ]
            ],
        ],
        RAW,
        routes=[CHAT],
    ),
]
