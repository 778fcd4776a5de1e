"""Rows of what was really sampled, and of what may be: true probabilities, scores, bans."""

import itertools
from base64 import b64decode
from typing import Any

import numpy as np

from tests.acceptance.contract.answers import COMPLETIONS, Answer
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
from tests.acceptance.small_model import CONTEXT

TWO = {"allowed_token_ids": [A, B], "temperature": 1.5}


def certain(answer: Answer, control: Answer | None) -> None:
    """At temperature 0 nothing else could be drawn, whatever the model thought."""
    assert control is not None
    for info, raw in zip(answer.each("meta_info"), control.each("meta_info"), strict=True):
        assert [entry[0] for entry in info["output_token_logprobs"]] == [0.0] * 4
        assert all(entry[0] < 0 for entry in raw["output_token_logprobs"])


def prompt_is_scored(answer: Answer, _: Answer | None) -> None:
    alone = "prompt_logprobs" in answer.body
    scored = [answer.body["prompt_logprobs"]] if alone else answer.each("prompt_logprobs")
    for rows, ids_ in zip(scored, answer.each("prompt_token_ids"), strict=False):
        assert rows[0] is None
        assert len(rows) == len(ids_)
        for entry, token_id in zip(rows[1:], ids_[1:], strict=True):
            own = entry[str(token_id)]
            assert set(own) == {"logprob", "rank", "decoded_token"}
            assert 2 <= len(entry) <= 3
            assert {1, 2} <= {each["rank"] for each in entry.values()}
            better = [each for each in entry.values() if each["logprob"] > own["logprob"]]
            assert len(better) < own["rank"]


def supported(answer: Answer, _: Answer | None) -> None:
    for given, tokens in zip(
        answer.each("sampling_support"), answer.each("token_ids"), strict=True
    ):
        assert given["counts"] == [2] * len(tokens)
        assert all(mass < 0 for mass in given["log_mass"])
        assert given["ids"] == ""


def listed(answer: Answer, _: Answer | None) -> None:
    for given, tokens in zip(
        answer.each("sampling_support"), answer.each("token_ids"), strict=True
    ):
        likeliest = np.frombuffer(b64decode(given["ids"]), "<i4")
        assert len(likeliest) == len(tokens) == 4
        assert {A, B}.issuperset(likeliest.tolist())


def only(*allowed: int) -> Any:
    def check(answer: Answer, _: Answer | None) -> None:
        for tokens in answer.each("token_ids"):
            assert len(tokens) == 4
            assert set(allowed).issuperset(tokens)

    return check


def never_twice(answer: Answer, _: Answer | None) -> None:
    """`aa` is not written, and `a` alone is."""
    for tokens in answer.each("token_ids"):
        assert A in tokens
        assert (A, A) not in itertools.pairwise(tokens)


def ends_with_stop(answer: Answer, _: Answer | None) -> None:
    assert answer.texts == ["aa"] * answer.form.choices


def cut_to(count: int) -> Any:
    def check(answer: Answer, control: Answer | None) -> None:
        assert control is not None
        for given, whole in zip(
            answer.each("prompt_token_ids"), control.each("prompt_token_ids"), strict=True
        ):
            assert given == whole[-count:]

    return check


def continued(answer: Answer, _: Answer | None) -> None:
    """Two continuations of each prompt are two choices, and nothing is generated."""
    assert answer.each("token_ids") == [[A, B], [A]] * answer.form.prompts
    assert answer.each("token_mask") == [[0, 0], [0]] * answer.form.prompts
    assert answer.texts == ["ab", "a"] * answer.form.prompts
    assert answer.usage["completion_tokens"] == 0
    for score, logprobs in zip(answer.each("score"), answer.each("logprobs"), strict=True):
        assert abs(score["logprob"] - sum(logprobs["token_logprobs"])) < 1e-4
    first, second = answer.choices[:2]
    same = [choice["logprobs"]["token_logprobs"][0] for choice in (first, second)]
    assert abs(same[0] - same[1]) < 1e-4


def forbidden(answer: Answer, _: Answer | None) -> None:
    found = [score["forbidden_at"] for score in answer.each("score")]
    assert found == [1, None] * answer.form.prompts


SCORING = {"max_tokens": 0, "n": 1, "ignore_eos": False}
PAIR = [[A, B], [A]]

ROWS: list[Row] = [
    row(
        "logprobs_mode",
        "processed",
        certain,
        [
            *wrong("logprobs_mode", 1, True, {}),
            *wrong("logprobs_mode", "cooked", code=BAD),
        ],
        {"return_logprob": True},
        control=True,
    ),
    row(
        "prompt_logprobs",
        2,
        prompt_is_scored,
        [
            *wrong("prompt_logprobs", *INTEGER),
            *wrong("prompt_logprobs", -1, code=TOO_LOW),
            *wrong("prompt_logprobs", 21, code=TOO_HIGH),
            Refused({"prompt_logprobs": 1, "stream": True}, BAD, "prompt_logprobs"),
        ],
        fits=once,
    ),
    row(
        "return_sampling_support",
        True,
        supported,
        wrong("return_sampling_support", *BOOLEAN),
        TWO,
    ),
    row(
        "sampling_support_ids",
        1,
        listed,
        [
            *wrong("sampling_support_ids", *INTEGER),
            *wrong("sampling_support_ids", -1, code=TOO_LOW),
            *wrong("sampling_support_ids", 1025, code=TOO_HIGH),
        ],
        {**TWO, "return_sampling_support": True},
    ),
    row("sampling_support_ids", 1, ignored("sampling_support_ids")),
    row(
        "allowed_token_ids",
        [A, B],
        only(A, B),
        [
            *wrong("allowed_token_ids", 1, "1", {}),
            *wrong("allowed_token_ids", [], code="empty_array"),
            *wrong("allowed_token_ids", [396], code=BAD_ID, at="allowed_token_ids[0]"),
            *wrong("allowed_token_ids", [1] * 16385, code="array_above_max_length"),
        ],
        {"temperature": 1},
    ),
    row(
        "bad_words",
        ["aa"],
        never_twice,
        [
            *wrong("bad_words", 1, "x", {}),
            *wrong("bad_words", [1], at="bad_words[0]"),
            *wrong("bad_words", ["a", " "], code=BAD, at="bad_words[1]"),
            *wrong("bad_words", ["x" * 257], code=BAD, at="bad_words[0]"),
            *wrong("bad_words", ["x"] * 129, code="array_above_max_length"),
        ],
        ALL_A,
    ),
    row(
        "include_stop_str_in_output",
        True,
        ends_with_stop,
        wrong("include_stop_str_in_output", *BOOLEAN),
        {**ALL_A, "stop": "aa"},
    ),
    row(
        "truncate_prompt_tokens",
        2,
        cut_to(2),
        [
            *wrong("truncate_prompt_tokens", *INTEGER),
            *wrong("truncate_prompt_tokens", -2, code=TOO_LOW),
            *wrong("truncate_prompt_tokens", 0, code=BAD),
        ],
        control=True,
    ),
    row("truncate_prompt_tokens", -1, cut_to(400), control=True),
    Row(
        "continuation_token_ids",
        lambda form: {**SCORING, "continuation_token_ids": PAIR},
        continued,
        [COMPLETIONS],
        [
            *wrong("continuation_token_ids", 1, "x", {}, code="invalid_type"),
            *wrong(
                "continuation_token_ids", [[]], code="empty_array", at="continuation_token_ids[0]"
            ),
            *[
                Refused({**SCORING, "continuation_token_ids": PAIR, name: value}, BAD, name)
                for name, value in {
                    "max_tokens": 1,
                    "echo": True,
                    "n": 2,
                    "best_of": 2,
                    "return_logprob": True,
                    "prompt_logprobs": 1,
                    "logprobs_mode": "processed",
                }.items()
            ],
            Refused(
                {**SCORING, "continuation_token_ids": [[A] * (CONTEXT - 2)]},
                "context_length_exceeded",
                "prompt",
            ),
        ],
        fits=lambda form: form.n == 1,
    ),
    Row(
        "continuation_token_ids",
        lambda form: {
            **SCORING,
            "continuation_token_ids": [PAIR] * form.prompts,
            "regex": "a",
        },
        forbidden,
        [COMPLETIONS],
        fits=lambda form: form.n == 1,
    ),
]
