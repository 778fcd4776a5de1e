"""SGLang's fields of log probabilities, for each prompt of a completion."""

from typing import Any

import pytest

from completions.responses.sglang import SGLangLogprobs
from tests.completions.requests.validating import (
    LEAST,
    refusal,
    validate,
)

pytestmark = pytest.mark.usefixtures("served")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"return_logprob": True}, [SGLangLogprobs(True, 0, (), -1)] * 2),
        ({"return_logprob": [True, False]}, [SGLangLogprobs(True, 0, (), -1), None]),
        ({"return_logprob": False}, None),
        (
            {"return_logprob": True, "top_logprobs_num": [0, 3]},
            [SGLangLogprobs(True, 0, (), -1), SGLangLogprobs(True, 3, (), -1)],
        ),
        (
            {"return_logprob": True, "logprob_start_len": [-1, 1]},
            [SGLangLogprobs(True, 0, (), -1), SGLangLogprobs(True, 0, (), 1)],
        ),
        ({"token_ids_logprob": 7}, [SGLangLogprobs(False, 0, [7], -1)] * 2),
        ({"token_ids_logprob": [7, 8]}, [SGLangLogprobs(False, 0, [7, 8], -1)] * 2),
        (
            {"token_ids_logprob": [[7], [8, 9]]},
            [SGLangLogprobs(False, 0, [7], -1), SGLangLogprobs(False, 0, [8, 9], -1)],
        ),
        ({"token_ids_logprob": []}, None),
    ],
)
def test_sglangs_log_probabilities_may_differ_by_prompt(fields: Any, expected: Any) -> None:
    assert validate({**LEAST, "prompt": [[1], [2, 3]], **fields}).logprobs.sglang == expected


def test_fields_that_take_no_value_per_prompt() -> None:
    two = {**LEAST, "prompt": [[1], [2, 3]], "return_logprob": True}
    assert refusal({**two, "logprob_start_len": 2}) == (
        "integer_above_max_value",
        "logprob_start_len",
    )
    for name, value in (("logprob_start_len", [0, 1]), ("token_ids_logprob", [[1], [2]])):
        assert validate({**two, name: value})
        assert refusal({**two, name: value, "n": 2}) == ("invalid_value", name)
