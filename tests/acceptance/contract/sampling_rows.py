"""Rows of the fields that say how tokens are chosen and when a choice ends."""

from tests.acceptance.contract.answers import COMPLETIONS, Answer
from tests.acceptance.contract.rows import (
    ABSENT,
    ALL_A,
    BAD,
    BAD_ID,
    BOOLEAN,
    EOS,
    INTEGER,
    NUMBER,
    TOO_HIGH,
    TOO_LOW,
    A,
    B,
    Refused,
    Row,
    row,
    wrong,
)

LOW, HIGH = "decimal_below_min_value", "decimal_above_max_value"


def lengths(count: int):
    def check(answer: Answer, _: Answer | None) -> None:
        assert [len(ids) for ids in answer.each("token_ids")] == [count] * answer.form.choices
        assert set(answer.each("finish_reason")) == {"length"}
        assert answer.usage["completion_tokens"] == count * answer.form.choices

    return check


def ends(text: str, matched, tokens: int | None = None):
    """Every choice stops with this text, at this stop."""

    def check(answer: Answer, _: Answer | None) -> None:
        assert answer.texts == [text] * answer.form.choices
        assert set(answer.each("finish_reason")) == {"stop"}
        assert answer.each("matched_stop") == [matched] * answer.form.choices
        if tokens is not None:
            assert {len(ids) for ids in answer.each("token_ids")} == {tokens}

    return check


def all_are(token: int, count: int):
    def check(answer: Answer, _: Answer | None) -> None:
        assert answer.each("token_ids") == [[token] * count] * answer.form.choices

    return check


def greedy(answer: Answer, control: Answer | None) -> None:
    """What the filter leaves is what temperature 0 takes."""
    assert control is not None
    assert answer.each("token_ids") == control.each("token_ids")


def other(answer: Answer, control: Answer | None) -> None:
    assert control is not None
    for given, without in zip(answer.each("token_ids"), control.each("token_ids"), strict=True):
        assert given != without


def drawn(answer: Answer, _: Answer | None) -> None:
    """Choices of one prompt have streams of random numbers of their own."""
    assert len({tuple(ids) for ids in answer.each("token_ids")}) == answer.form.choices


def stopped_regex(answer: Answer, _: Answer | None) -> None:
    ends("", "a{3}", 3)(answer, None)
    assert [info["matched_stop_text"] for info in answer.each("meta_info")] == [
        "aaa"
    ] * answer.form.choices


def first_is_not_last(answer: Answer, _: Answer | None) -> None:
    """min_tokens: three tokens that are not the end, then the end."""
    for ids in answer.each("token_ids"):
        assert len(ids) == 4
        assert EOS not in ids[:3]
    assert answer.each("matched_stop") == [EOS] * answer.form.choices


def count_of_choices(answer: Answer, _: Answer | None) -> None:
    assert answer.each("index") == list(range(answer.form.prompts * 3))


def best(answer: Answer, _: Answer | None) -> None:
    assert len(answer.choices) == answer.form.choices
    assert answer.usage["completion_tokens"] == 3 * 4 * answer.form.prompts


def shown_specials(answer: Answer, control: Answer | None) -> None:
    assert control is not None
    assert set(answer.texts) == {"<|end|>" * 4}
    assert set(control.texts) == {""}


def same_text(answer: Answer, control: Answer | None) -> None:
    """Byte-level decoders put no spaces between special tokens."""
    assert control is not None
    assert answer.texts == control.texts == ["<|end|>" * 4] * answer.form.choices


END = {"logit_bias": {str(EOS): 100}}
LONG = {"max_tokens": 20}

ROWS: list[Row] = [
    row(
        "max_tokens",
        2,
        lengths(2),
        [
            *wrong("max_tokens", *INTEGER),
            *wrong("max_tokens", 0, -1, code=TOO_LOW),
            *wrong("max_new_tokens", 2, code="unsupported_parameter"),
            *wrong("max_tokns", 2, code="unknown_parameter"),
        ],
    ),
    row(
        "max_completion_tokens",
        3,
        lengths(3),
        [
            *wrong("max_completion_tokens", *INTEGER),
            Refused({"max_completion_tokens": 5}, BAD, "max_completion_tokens"),
        ],
        {"max_tokens": ABSENT},
    ),
    row(
        "min_tokens",
        3,
        first_is_not_last,
        [
            *wrong("min_tokens", *INTEGER),
            *wrong("min_tokens", -1, code=TOO_LOW),
            *wrong("min_tokens", 5, code=BAD),
        ],
        {**END, "ignore_eos": False, "max_tokens": 6},
    ),
    row(
        "temperature",
        2,
        drawn,
        [
            *wrong("temperature", *NUMBER),
            *wrong("temperature", -0.1, code=LOW),
            *wrong("temperature", 2.1, code=HIGH),
        ],
        {"max_tokens": 8},
    ),
    row(
        "seed",
        7,
        drawn,
        [
            *wrong("seed", *INTEGER),
            *wrong("seed", 2**63, code=TOO_HIGH),
            *wrong("seed", -(2**63) - 1, code=TOO_LOW),
        ],
        {"temperature": 1.5, "max_tokens": 8},
    ),
    *[
        Row(
            name,
            lambda form, given=given: given,
            greedy,
            refused=refused,
            control=True,
            without={"temperature": 0},
        )
        for name, given, refused in [
            (
                "top_p",
                {"top_p": 1e-6, "temperature": 2},
                [
                    *wrong("top_p", *NUMBER),
                    *wrong("top_p", 0, code=LOW),
                    *wrong("top_p", 1.1, code=HIGH),
                ],
            ),
            (
                "top_k",
                {"top_k": 1, "temperature": 2},
                [*wrong("top_k", *INTEGER), *wrong("top_k", -2, code=TOO_LOW)],
            ),
            (
                "min_p",
                {"min_p": 1, "temperature": 2},
                [
                    *wrong("min_p", *NUMBER),
                    *wrong("min_p", -0.1, code=LOW),
                    *wrong("min_p", 1.1, code=HIGH),
                ],
            ),
        ]
    ],
    row("top_k", 0, lengths(4)),  # both are off
    row("top_k", -1, lengths(4)),
    row("top_k", 10**30, lengths(4)),
    row(
        "n",
        3,
        count_of_choices,
        [
            *wrong("n", *INTEGER),
            *wrong("n", 0, code=TOO_LOW),
            *wrong("n", 129, code=TOO_HIGH),
        ],
        fits=lambda form: form.n == 1,
    ),
    row(
        "best_of",
        3,
        best,
        [
            *wrong("best_of", *INTEGER),
            *wrong("best_of", 0, code=TOO_LOW),
            *wrong("best_of", 129, code=TOO_HIGH),
            Refused({"best_of": 2, "n": 3}, BAD, "best_of"),
            Refused({"best_of": 2, "stream": True}, BAD, "best_of"),
        ],
        {"temperature": 1},
        routes=[COMPLETIONS],
        fits=lambda form: not form.stream,
    ),
    Row(
        "best_of",
        lambda form: {"best_of": form.n},
        lambda answer, _: None,
        [COMPLETIONS],
        fits=lambda form: form.stream,
    ),
    row(
        "stop",
        ["x", "aa"],
        ends("", "aa", 2),
        [
            *wrong("stop", 1, True, {}),
            *wrong("stop", "", code=BAD),
            *wrong("stop", ["x"] * 17, code="array_above_max_length"),
            *wrong("stop", ["x", ""], code=BAD, at="stop[1]"),
            *wrong("stop", ["x" * 257], code=BAD, at="stop[0]"),
        ],
        ALL_A,
    ),
    row("stop", "aaa", ends("", "aaa", 3), beside=ALL_A),
    row(
        "stop_regex",
        "a{3}",
        stopped_regex,
        [
            *wrong("stop_regex", 1, True, {}),
            *wrong("stop_regex", "", "(", "a*", "é" * 129, code=BAD),
            *wrong("stop_regex", ["x"] * 33, code="array_above_max_length"),
            *wrong("stop_regex", ["a", "b("], code=BAD, at="stop_regex[1]"),
            *wrong("stop_regex", "$a", code=BAD),
        ],
        ALL_A,
    ),
    row("stop_regex", ["^aaa$", "^b"], ends("", "^aaa$", 3), beside=ALL_A),
    row(
        "stop_token_ids",
        [A],
        ends("", A, 1),
        [
            *wrong("stop_token_ids", 1, "1", {}),
            *wrong("stop_token_ids", [396], [-1], [True], code=BAD_ID, at="stop_token_ids[0]"),
            *wrong("stop_token_ids", [1] * 129, code="array_above_max_length"),
        ],
        ALL_A,
    ),
    row("ignore_eos", True, all_are(EOS, 4), wrong("ignore_eos", *BOOLEAN), END),
    row("ignore_eos", False, ends("", EOS, 1), beside=END),
    row(
        "ignore_eos",
        True,
        all_are(EOS, 4),
        [
            Refused({"max_tokens": ABSENT}, "missing_required_parameter", "max_tokens"),
            Refused({"max_tokens": None}, "missing_required_parameter", "max_tokens"),
        ],
        {**END, "stop_token_ids": []},
    ),
    row(
        "no_stop_trim",
        True,
        ends("aa", "aa", 2),
        wrong("no_stop_trim", *BOOLEAN),
        {**ALL_A, "stop": "aa"},
    ),
    row(
        "logit_bias",
        {str(A): 100, str(B): -100.0},
        all_are(A, 4),
        [
            *wrong("logit_bias", [], "x", 1),
            *[
                Refused({"logit_bias": {key: 1}}, BAD_ID, f"logit_bias.{key}")
                for key in ("396", "-1", "01", "x")
            ],
            Refused({"logit_bias": {"1": 101}}, HIGH, "logit_bias.1"),
            Refused({"logit_bias": {"1": True}}, "invalid_type", "logit_bias.1"),
            *wrong("logit_bias", {str(i): 0 for i in range(1025)}, code=BAD),
        ],
    ),
    *[
        row(
            name,
            2,
            other,
            [
                *wrong(name, *NUMBER),
                *wrong(name, below, code=LOW),
                *wrong(name, 2.1, code=HIGH),
            ],
            LONG,
            control=True,
        )
        for name, below in (
            ("frequency_penalty", -2.1),
            ("presence_penalty", -2.1),
            ("repetition_penalty", 0),
        )
    ],
    row(
        "skip_special_tokens",
        False,
        shown_specials,
        wrong("skip_special_tokens", *BOOLEAN),
        END,
        control=True,
    ),
    row(
        "spaces_between_special_tokens",
        False,
        same_text,
        wrong("spaces_between_special_tokens", *BOOLEAN),
        {**END, "skip_special_tokens": False},
        control=True,
    ),
]
