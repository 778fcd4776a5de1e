"""Rows of DRY and of registered processors."""

from tests.acceptance.contract.answers import Answer
from tests.acceptance.contract.rows import (
    ALL_A,
    BAD,
    INTEGER,
    NUMBER,
    TOO_LOW,
    A,
    Refused,
    Row,
    ignored,
    row,
    wrong,
)
from tests.acceptance.contract.sampling_rows import LOW, all_are, other

DRY = {**ALL_A, "dry_multiplier": 5, "max_tokens": 24}


def never_a(answer: Answer, _: Answer | None) -> None:
    assert all(A not in ids for ids in answer.each("token_ids"))


def broken_repetition(answer: Answer, control: Answer | None) -> None:
    assert control is not None
    assert all(set(ids) == {A} for ids in control.each("token_ids"))
    assert all(set(ids) != {A} for ids in answer.each("token_ids"))


ROWS: list[Row] = [
    row(
        "dry_multiplier",
        5,
        broken_repetition,
        [
            *wrong("dry_multiplier", *NUMBER),
            *wrong("dry_multiplier", -1, code=LOW),
        ],
        {**ALL_A, "max_tokens": 24},
        control=True,
    ),
    row(
        "dry_base",
        4,
        other,
        [*wrong("dry_base", *NUMBER), *wrong("dry_base", 0, code=LOW)],
        DRY,
        control=True,
    ),
    row(
        "dry_allowed_length",
        8,
        other,
        [
            *wrong("dry_allowed_length", *INTEGER),
            *wrong("dry_allowed_length", -1, code=TOO_LOW),
        ],
        DRY,
        control=True,
    ),
    row(
        "dry_sequence_breakers",
        ["a"],
        all_are(A, 24),
        [
            *wrong("dry_sequence_breakers", "a", 1, {}),
            *wrong("dry_sequence_breakers", ["a", ""], code=BAD, at="dry_sequence_breakers[1]"),
            *wrong("dry_sequence_breakers", ["x"] * 65, code="array_above_max_length"),
        ],
        DRY,
    ),
    row(
        "custom_logit_processor",
        "disallowed_tokens",
        never_a,
        [
            *wrong("custom_logit_processor", 1, [], {}),
            *wrong("custom_logit_processor", "nobody", code=BAD),
            *wrong("custom_logit_processor", '{"callable": "00"}', code="unsupported_value"),
        ],
        {**ALL_A, "custom_params": {"token_ids": [A]}},
    ),
    row(
        "custom_params",
        {"token_ids": [A]},
        never_a,
        [
            *[
                Refused(
                    {"custom_params": given, "custom_logit_processor": "disallowed_tokens"},
                    code,
                    at,
                )
                for given, code, at in [
                    ([], "invalid_type", "custom_params"),
                    ({"__x": 1}, BAD, "custom_params.__x"),
                    ({"x": [[1]]}, BAD, "custom_params.x"),
                    ({"x": "y" * 17000}, BAD, "custom_params"),
                ]
            ],
        ],
        {**ALL_A, "custom_logit_processor": "disallowed_tokens"},
    ),
    row("custom_params", {"thinking_budget": 5}, ignored("custom_params")),
]
