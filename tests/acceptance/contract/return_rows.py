"""Rows of what answers contain beside their text."""

import base64
from collections.abc import Callable
from typing import Any

from tests.acceptance.contract.answers import CHAT, COMPLETIONS, Answer
from tests.acceptance.contract.rows import (
    ALL_A,
    BAD,
    BAD_ID,
    BOOLEAN,
    INTEGER,
    TOO_HIGH,
    TOO_LOW,
    A,
    B,
    Refused,
    Row,
    ignored,
    once,
    row,
    wrong,
)
from tests.acceptance.small_model import EXPERTS_PER_TOKEN, HIDDEN, LAYERS


def choices_have(
    name: str, holds: Callable[[Any], bool]
) -> Callable[[Answer, Answer | None], None]:
    """Check that choices have the key if the row's field is sent, and only then."""

    def check(answer: Answer, control: Answer | None) -> None:
        assert all(holds(value) for value in answer.each(name))
        assert len(answer.choices) == answer.form.choices
        assert control is not None
        assert all(name not in choice for choice in control.choices)

    return check


def meta_has(name: str, holds: Callable[[Any], bool]) -> Callable[[Answer, Answer | None], None]:
    def check(answer: Answer, control: Answer | None) -> None:
        for info in answer.each("meta_info"):
            assert holds(info[name]), info
        assert control is not None
        assert all(name not in choice.get("meta_info", {}) for choice in control.choices)

    return check


def continuous(answer: Answer, _: Answer | None) -> None:
    counts = [chunk["usage"]["completion_tokens"] for chunk in answer.chunks if chunk["choices"]]
    assert max(counts) == 4
    assert "cached_tokens" in answer.chunks[0]["usage"]["prompt_tokens_details"]
    assert answer.chunks[-1]["choices"] == []


def obfuscated(answer: Answer, _: Answer | None) -> None:
    for chunk in answer.chunks:
        assert ("obfuscation" in chunk) == bool(chunk["choices"])
    sizes = [len(frame.encode()) for frame in answer.raw.split("\n\n") if '"obfuscation"' in frame]
    assert {size % 64 for size in sizes} == {len("data: ") % 64}


def without_usage(answer: Answer, control: Answer | None) -> None:
    assert all(chunk["usage"] is None for chunk in answer.chunks)


def experts(start: int) -> Callable[[Answer, Answer | None], None]:
    def check(answer: Answer, _: Answer | None) -> None:
        for choice, info in zip(answer.choices, answer.each("meta_info"), strict=True):
            rows = len(choice["prompt_token_ids"]) + len(choice["token_ids"]) - 1 - start
            raw = base64.b64decode(info["routed_experts"])
            assert len(raw) == rows * LAYERS * EXPERTS_PER_TOKEN * 4
        assert (
            answer.body["sglext"]["routed_experts"]
            == answer.choices[0]["meta_info"]["routed_experts"]
        )

    return check


def cached(answer: Answer, control: Answer | None) -> None:
    assert set(answer.body["sglext"]["cached_tokens_details"]) == {"device"}
    assert control is not None
    assert "sglext" not in control.body


def scores(answer: Answer, _: Answer | None) -> None:
    for choice, info in zip(answer.choices, answer.each("meta_info"), strict=True):
        entries = info["output_token_logprobs"]
        assert [entry[1] for entry in entries] == choice["token_ids"]
        assert all(entry[0] <= 0 and entry[2] is None for entry in entries)
        assert info["output_token_logprobs_length"] == 4
        assert info["input_token_logprobs"] == []


def prompt_scores(answer: Answer, _: Answer | None) -> None:
    for choice, info in zip(answer.choices, answer.each("meta_info"), strict=True):
        entries = info["input_token_logprobs"]
        assert [entry[1] for entry in entries] == choice["prompt_token_ids"][1:]
        assert entries[0][0] is None


def texts_in_scores(answer: Answer, _: Answer | None) -> None:
    for info in answer.each("meta_info"):
        assert all(type(entry[2]) is str for entry in info["output_token_logprobs"])


def one_text_per_token(answer: Answer, _: Answer | None) -> None:
    for choice in answer.choices:
        logprobs = choice["logprobs"]
        assert "".join(logprobs["tokens"]) == choice["text"] == "aaaa"
        assert logprobs["text_offset"] == [0, 1, 2, 3]
        assert all(
            own == best["a"]
            for own, best in zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
        )
        assert all(2 <= len(best) <= 3 for best in logprobs["top_logprobs"])


def chat_scores(top: int) -> Callable[[Answer, Answer | None], None]:
    def check(answer: Answer, _: Answer | None) -> None:
        for choice in answer.choices:
            entries = choice["logprobs"]["content"]
            assert [each["token"] for each in entries] == ["a"] * 4
            assert all(
                each["bytes"] == [97] and len(each["top_logprobs"]) == top for each in entries
            )

    return check


def called_by_ids(answer: Answer, _: Answer | None) -> None:
    for info in answer.each("meta_info"):
        assert [[entry[1] for entry in row] for row in info["output_token_ids_logprobs"]] == [
            [A, B]
        ] * 4


SCORED = {"return_logprob": True}


OPTIONS = {"stream": True}


is_list = lambda value: isinstance(value, list)  # noqa: E731


ROWS: list[Row] = [
    row("stream", None, lambda answer, _: None, wrong("stream", *BOOLEAN), fits=once),
    row(
        "stream_options",
        {"include_usage": False},
        without_usage,
        [
            *wrong("stream_options", {"include_usage": True}, code=BAD),
            *[
                Refused({"stream_options": given, **OPTIONS}, code, at)
                for given, code, at in [
                    ([], "invalid_type", "stream_options"),
                    ({"include_usage": 1}, "invalid_type", "stream_options.include_usage"),
                    ({"usage": True}, "unknown_parameter", "stream_options.usage"),
                ]
            ],
        ],
        fits=lambda form: form.stream,
        alike=False,
    ),
    row(
        "stream_options",
        {"continuous_usage_stats": True},
        continuous,
        fits=lambda form: form.stream,
    ),
    row("stream_options", {"include_obfuscation": True}, obfuscated, fits=lambda form: form.stream),
    row(
        "return_token_ids",
        True,
        choices_have("prompt_token_ids", is_list),
        wrong("return_token_ids", *BOOLEAN),
        control=True,
    ),
    row(
        "return_meta_info",
        True,
        choices_have("meta_info", lambda info: info["completion_tokens"] == 4),
        wrong("return_meta_info", *BOOLEAN),
        control=True,
    ),
    *[
        row(
            "return_hidden_states",
            given,
            choices_have("hidden_states", lambda v: len(v) == HIDDEN),
            refused,
            control=True,
        )
        for given, refused in (
            (
                "last",
                [
                    *wrong("return_hidden_states", 1, [], {}),
                    *wrong("return_hidden_states", "first", code=BAD),
                ],
            ),
            (True, []),
        )
    ],
    row("return_routed_experts", True, experts(0), wrong("return_routed_experts", *BOOLEAN)),
    row(
        "routed_experts_start_len",
        2,
        experts(2),
        [
            *wrong("routed_experts_start_len", *INTEGER),
            Refused(
                {"routed_experts_start_len": 400, "return_routed_experts": True},
                TOO_HIGH,
                "routed_experts_start_len",
            ),
        ],
        {"return_routed_experts": True},
    ),
    *[
        row(name, 1, ignored(name))
        for name in ("routed_experts_start_len", "top_logprobs_num", "logprob_start_len")
    ],
    row(
        "return_cached_tokens_details",
        True,
        cached,
        wrong("return_cached_tokens_details", *BOOLEAN),
        control=True,
    ),
    row("return_logprob", True, scores, wrong("return_logprob", 1, "true", {})),
    Row(
        "return_logprob",
        lambda form: {"return_logprob": [True] * form.prompts},
        scores,
        refused=[Refused({"return_logprob": [True] * 3}, BAD, "return_logprob")],
    ),
    row(
        "top_logprobs_num",
        3,
        meta_has("output_top_logprobs", lambda rows: {len(r) for r in rows} == {3}),
        [
            *wrong("top_logprobs_num", True, "1", {}),
            Refused({"top_logprobs_num": 21, **SCORED}, TOO_HIGH, "top_logprobs_num"),
        ],
        SCORED,
        control=True,
    ),
    row(
        "logprob_start_len",
        1,
        prompt_scores,
        [
            *wrong("logprob_start_len", True, "1", {}),
            Refused({"logprob_start_len": -2, **SCORED}, TOO_LOW, "logprob_start_len"),
            Refused({"logprob_start_len": 400, **SCORED}, TOO_HIGH, "logprob_start_len"),
        ],
        SCORED,
    ),
    row(
        "token_ids_logprob",
        [A, B],
        called_by_ids,
        [
            *wrong("token_ids_logprob", True, "1", {}),
            *wrong("token_ids_logprob", [396], code=BAD_ID, at="token_ids_logprob[0]"),
            *wrong("token_ids_logprob", [1] * 129, code="array_above_max_length"),
        ],
    ),
    row(
        "return_text_in_logprobs",
        True,
        texts_in_scores,
        [
            *wrong("return_text_in_logprobs", *BOOLEAN),
            *wrong("return_text_in_logprobs", True, code=BAD),
        ],
        SCORED,
    ),
    row(
        "logprobs",
        2,
        one_text_per_token,
        [
            *wrong("logprobs", *INTEGER),
            *wrong("logprobs", -1, code=TOO_LOW),
            *wrong("logprobs", 21, code=TOO_HIGH),
        ],
        ALL_A,
        routes=[COMPLETIONS],
    ),
    row("logprobs", True, chat_scores(0), wrong("logprobs", *BOOLEAN), ALL_A, routes=[CHAT]),
    row(
        "top_logprobs",
        2,
        chat_scores(2),
        [
            *wrong("top_logprobs", 2, code=BAD),
            *wrong("top_logprobs", *INTEGER),
            Refused({"logprobs": True, "top_logprobs": 21}, TOO_HIGH, "top_logprobs"),
        ],
        {**ALL_A, "logprobs": True},
        routes=[CHAT],
    ),
]
