"""Every field's range and type."""

from typing import Any

import pytest

from completions.requests.fields.base import PerPrompt
from tests.completions.requests.validating import LEAST, field_values, refusal

pytestmark = pytest.mark.usefixtures("served")


@pytest.mark.parametrize(
    ("field", "given_value", "expected"),
    [
        ("max_tokens", 1, 1),
        ("min_tokens", 16, 16),
        ("temperature", 0, 0.0),
        ("temperature", 2, 2.0),
        ("temperature", 0.7, 0.7),
        ("top_p", 0.001, 0.001),
        ("top_p", 1, 1.0),
        ("top_k", -1, -1),
        ("top_k", 0, -1),
        ("top_k", 10**30, -1),
        ("top_k", 5, 5),
        ("min_p", 0, 0.0),
        ("min_p", 1, 1.0),
        ("seed", -(2**63), -(2**63)),
        ("seed", 2**63 - 1, 2**63 - 1),
        ("n", 128, 128),
        ("stop", "x", ["x"]),
        ("stop", ["x", "y" * 256], ["x", "y" * 256]),
        ("stop", [], []),
        ("stop", ["x"] * 16, ["x"] * 16),
        ("stop_token_ids", [0, 259], [0, 259]),
        ("stop_token_ids", [], []),
        ("logit_bias", {"0": 100, "259": -100.0}, {0: 100.0, 259: -100.0}),
        ("frequency_penalty", -2, -2.0),
        ("presence_penalty", 2, 2.0),
        ("repetition_penalty", 0.1, 0.1),
        ("repetition_penalty", 2, 2.0),
        ("user", "u" * 256, "u" * 256),
        ("ebnf", "", ""),
        ("regex", " a ", " a "),
        ("json_schema", {}, {}),
        ("json_schema", "{}", "{}"),
        ("background", True, True),
        ("echo", True, True),
        ("logprobs", 0, 0),
        ("logprobs", 20, 20),
        ("stop_regex", "a+", ["a+"]),
        ("stop_regex", ["x", "[0-9]{3}"] * 16, ["x", "[0-9]{3}"] * 16),
        ("no_stop_trim", True, True),
        ("spaces_between_special_tokens", False, False),
        ("max_completion_tokens", 16, 16),
        ("priority", -100, -100),
        ("cache_salt", "pepper", "pepper"),
        ("rid", "a-Z_9.:", PerPrompt(["a-Z_9.:"], each=False)),
        ("rid", ["a"], PerPrompt(["a"], each=True)),
        ("return_hidden_states", True, True),
        ("return_hidden_states", "last", True),
        ("return_cached_tokens_details", True, True),
        ("metadata", {"a": "b"}, {"a": "b"}),
        ("store", False, False),
        ("service_tier", "auto", "auto"),
        ("safety_identifier", "x", "x"),
        ("prompt_cache_key", "x", "x"),
        ("prompt_cache_retention", "24h", "24h"),
        ("parallel_tool_calls", True, True),
        ("tool_choice", "none", "none"),
    ],
)
def test_accepted_values(field: str, given_value: Any, expected: Any) -> None:
    assert field_values({**LEAST, field: given_value})[field] == expected


BOOLEANS = [
    "stream", "ignore_eos", "return_token_ids", "skip_special_tokens", "background",
    "no_stop_trim", "spaces_between_special_tokens", "truncate_sequence", "return_routed_experts",
    "return_cached_tokens_details", "store", "parallel_tool_calls", "echo",
    "return_text_in_logprobs", "return_meta_info",
]  # fmt: skip
INTEGERS = [
    "max_tokens", "min_tokens", "top_k", "seed", "n", "max_completion_tokens", "priority",
    "routed_experts_start_len", "logprobs", "best_of", "dry_allowed_length",
]  # fmt: skip
NUMBERS = [
    "temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
    "dry_multiplier", "dry_base",
]  # fmt: skip
TEXTS = [
    "model", "user", "ebnf", "regex", "suffix", "cache_salt", "adapter", "service_tier",
    "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "tool_choice",
    "custom_logit_processor",
]  # fmt: skip
BAD_TYPES = [
    *[(field, value) for field in BOOLEANS for value in (0, 1, "true", [], {})],
    *[(field, value) for field in INTEGERS for value in (True, 1.0, "1", [1], {})],
    *[(field, value) for field in NUMBERS for value in (True, "0.5", [1], {})],
    *[(field, value) for field in TEXTS for value in (True, 1, ["x"], {})],
    *[(field, value) for field in ("stop", "stop_regex") for value in (1, True, {})],
    *[(field, value) for field in ("lora_path", "rid") for value in (1, True, {})],
    *[("return_logprob", value) for value in (1, "true", {})],
    *[
        (field, value)
        for field in ("top_logprobs_num", "logprob_start_len")
        for value in (True, 1.0, "1", {})
    ],
    *[("token_ids_logprob", value) for value in (True, 1.0, "1", {})],
    *[("return_hidden_states", value) for value in (1, [], {})],
    *[("metadata", value) for value in (1, "x", [])],
    *[("stop_token_ids", value) for value in (1, "1", {})],
    *[("logit_bias", value) for value in ([], "x", 1)],
    *[("json_schema", value) for value in ([], True, 1)],
    *[("response_format", value) for value in ("text", [])],
    *[("stream_options", value) for value in ("x", [])],
]


@pytest.mark.parametrize(("field", "value"), BAD_TYPES)
def test_wrong_types_are_never_converted(field: str, value: Any) -> None:
    assert refusal({**LEAST, field: value}) == ("invalid_type", field)


@pytest.mark.parametrize(
    ("field", "value", "code", "param"),
    [
        ("max_tokens", 0, "integer_below_min_value", None),
        ("min_tokens", -1, "integer_below_min_value", None),
        ("min_tokens", 17, "invalid_value", None),
        ("temperature", -0.1, "decimal_below_min_value", None),
        ("temperature", 2.1, "decimal_above_max_value", None),
        ("temperature", float("inf"), "invalid_value", None),
        ("temperature", float("-inf"), "invalid_value", None),
        ("temperature", 10**400, "decimal_above_max_value", None),
        ("top_p", 0, "decimal_below_min_value", None),
        ("top_p", 1.1, "decimal_above_max_value", None),
        ("top_k", -2, "integer_below_min_value", None),
        ("min_p", -0.1, "decimal_below_min_value", None),
        ("min_p", 1.1, "decimal_above_max_value", None),
        ("seed", 2**63, "integer_above_max_value", None),
        ("seed", -(2**63) - 1, "integer_below_min_value", None),
        ("n", 0, "integer_below_min_value", None),
        ("n", 129, "integer_above_max_value", None),
        ("stop", "", "invalid_value", None),
        ("stop", ["a", ""], "invalid_value", "stop[1]"),
        ("stop", ["y" * 257], "invalid_value", "stop[0]"),
        ("stop", ["x"] * 17, "array_above_max_length", None),
        ("stop", ["a", 1], "invalid_type", "stop[1]"),
        ("logprobs", 21, "integer_above_max_value", None),
        ("logprobs", -1, "integer_below_min_value", None),
        ("max_completion_tokens", 0, "integer_below_min_value", "max_tokens"),
        ("top_logprobs_num", 21, "integer_above_max_value", None),
        ("logprob_start_len", -2, "integer_below_min_value", None),
        ("return_logprob", [True, False], "invalid_value", None),
        ("return_logprob", [1], "invalid_type", "return_logprob[0]"),
        ("return_text_in_logprobs", True, "invalid_value", None),
        ("token_ids_logprob", [260], "invalid_token_id", "token_ids_logprob[0]"),
        ("token_ids_logprob", -1, "invalid_token_id", "token_ids_logprob[0]"),
        ("token_ids_logprob", [[1], [2]], "invalid_value", None),
        ("token_ids_logprob", [1] * 129, "array_above_max_length", None),
        ("stop_regex", "", "invalid_value", None),
        ("stop_regex", "(", "invalid_value", None),
        ("stop_regex", ["b$", "$b"], "invalid_value", "stop_regex[1]"),
        ("stop_regex", ["x"] * 33, "array_above_max_length", None),
        ("stop_regex", "é" * 129, "invalid_value", None),
        ("stop_regex", "a*", "invalid_value", None),
        ("stop_regex", ["(ab){400}"] * 32, "invalid_value", None),
        ("suffix", "x", "unsupported_parameter", None),
        ("priority", 101, "integer_above_max_value", None),
        ("priority", -101, "integer_below_min_value", None),
        ("priority", 1, "permission_denied", None),
        ("cache_salt", "x" * 257, "invalid_value", None),
        ("rid", "", "invalid_value", None),
        ("rid", "a b", "invalid_value", None),
        ("rid", "a" * 65, "invalid_value", None),
        ("rid", ["a", "b"], "invalid_value", None),
        ("rid", [], "invalid_value", None),
        ("lora_path", "nobody", "adapter_not_found", None),
        ("lora_path", "../../etc", "adapter_not_found", None),
        ("lora_path", ["polite", None], "invalid_value", None),
        ("adapter", {"generation": "0" * 64}, "unsupported_value", None),
        ("return_hidden_states", "first", "invalid_value", None),
        ("return_routed_experts", True, "unsupported_parameter", None),
        ("tools", [{"type": "function"}], "unsupported_parameter", None),
        ("tool_choice", "auto", "unsupported_parameter", None),
        ("stop_token_ids", [1, 260], "invalid_token_id", "stop_token_ids[1]"),
        ("stop_token_ids", [-1], "invalid_token_id", "stop_token_ids[0]"),
        ("stop_token_ids", [True], "invalid_token_id", "stop_token_ids[0]"),
        ("stop_token_ids", [1.0], "invalid_type", "stop_token_ids[0]"),
        ("stop_token_ids", [1] * 129, "array_above_max_length", None),
        ("logit_bias", {"260": 1}, "invalid_token_id", "logit_bias.260"),
        ("logit_bias", {"-1": 1}, "invalid_token_id", "logit_bias.-1"),
        ("logit_bias", {"01": 1}, "invalid_token_id", "logit_bias.01"),
        ("logit_bias", {"x": 1}, "invalid_token_id", "logit_bias.x"),
        ("logit_bias", {"٣": 1}, "invalid_token_id", "logit_bias.٣"),
        ("logit_bias", {"1": 101}, "decimal_above_max_value", "logit_bias.1"),
        ("logit_bias", {"1": -101}, "decimal_below_min_value", "logit_bias.1"),
        ("logit_bias", {"1": True}, "invalid_type", "logit_bias.1"),
        ("logit_bias", {str(i): 0 for i in range(1025)}, "invalid_value", None),
        ("frequency_penalty", 2.1, "decimal_above_max_value", None),
        ("presence_penalty", -2.1, "decimal_below_min_value", None),
        ("repetition_penalty", 0, "decimal_below_min_value", None),
        ("repetition_penalty", 2.1, "decimal_above_max_value", None),
        ("user", "u" * 257, "invalid_value", None),
        ("stream_options", {"include_usage": True}, "invalid_value", None),
        ("response_format", {}, "missing_required_parameter", "response_format.type"),
        ("response_format", {"type": "xml"}, "invalid_value", "response_format.type"),
        ("response_format", {"type": "json_schema"}, "missing_required_parameter",
         "response_format.json_schema"),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "a"}},
         "missing_required_parameter", "response_format.json_schema.schema"),
        ("response_format",
         {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}},
         "invalid_value", "response_format.json_schema.name"),
        ("response_format", {"type": "text", "json_schema": {"schema": {}}}, "invalid_value",
         "response_format.json_schema"),
        ("response_format", {"type": "json_object", "format": {}}, "invalid_value",
         "response_format.format"),
        ("response_format", {"type": "structural_tag", "structures": [1]}, "invalid_type",
         "response_format.structures[0]"),
        ("response_format", {"type": "text", "x": 1}, "unknown_parameter", "response_format.x"),
    ],
)  # fmt: skip
def test_refused_values(field: str, value: Any, code: str, param: str | None) -> None:
    assert refusal({**LEAST, field: value}) == (code, param or field)
