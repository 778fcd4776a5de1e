"""SGLang's native fields for log probabilities, and what a worker is asked for their sake."""

from collections.abc import Mapping, Sequence
from typing import Any

from completions.errors import FieldError
from completions.requests.fields import BooleanField, IntegerField, StrictSerializer
from completions.requests.text_fields import PerPromptField
from completions.requests.token_fields import TokenIdsField
from completions.responses.sglang import SGLangLogprobs

MAX_TOP = 20
MAX_IDS = 128


class ScoredIdsField(PerPromptField):
    """One id, some ids for all prompts, or an array of ids for each prompt."""

    def to_schema(self) -> dict[str, Any]:
        ids = self.child.to_schema()
        return {"anyOf": [ids["items"], ids, {"type": "array", "items": ids}]}

    def is_array(self, data: Any) -> bool:
        return type(data) is list and bool(data) and all(type(item) is not int for item in data)

    def to_internal_value(self, data: Any) -> Any:
        return super().to_internal_value([data] if type(data) is int else data)


class NativeLogprobFields(StrictSerializer):
    return_logprob = PerPromptField(
        child=BooleanField(), required=False,
        help_text="Add the log probabilities of all sampled tokens to `meta_info`: "
        "`output_token_logprobs`, arrays of [log probability, id, text].",
    )  # fmt: skip
    top_logprobs_num = PerPromptField(
        child=IntegerField(min_value=0, max_value=MAX_TOP), required=False,
        help_text="With return_logprob: this many likeliest tokens of each position in "
        "`meta_info.output_top_logprobs`.",
    )  # fmt: skip
    logprob_start_len = PerPromptField(
        child=IntegerField(min_value=-1), required=False,
        help_text="With return_logprob: the same of the prompt from this position on, in "
        "`meta_info.input_token_logprobs`; -1, the default, for none.",
    )  # fmt: skip
    token_ids_logprob = ScoredIdsField(
        child=TokenIdsField(max_length=MAX_IDS), required=False,
        help_text="Up to 128 ids whose log probabilities at each position are in "
        "`meta_info.output_token_ids_logprobs`.",
    )  # fmt: skip
    return_text_in_logprobs = BooleanField(
        default=False, help_text="Texts instead of null in the arrays of these fields."
    )


def native_of(
    validated: Mapping[str, Any], prompts: Sequence[Sequence[int]]
) -> list[SGLangLogprobs | None] | None:
    """What each prompt's fields ask for; None when no prompt asks. Raises FieldError."""
    count = len(prompts)
    tokens = _spread(validated, "return_logprob", count, False)
    tops = _spread(validated, "top_logprobs_num", count, 0)
    starts = _spread(validated, "logprob_start_len", count, -1)
    ids = _spread(validated, "token_ids_logprob", count, ())
    wishes: list[SGLangLogprobs | None] = []
    for i, prompt in enumerate(prompts):
        if tops[i] and not tokens[i]:
            raise FieldError("invalid_value", "goes with return_logprob only.", "top_logprobs_num")
        if starts[i] >= 0 and not (tokens[i] or ids[i]):
            raise FieldError("invalid_value", "goes with return_logprob only.", "logprob_start_len")
        if starts[i] > len(prompt):
            message = f"must be at most the prompt's length, {len(prompt)}."
            raise FieldError("integer_above_max_value", message, "logprob_start_len")
        asked = tokens[i] or ids[i]
        wishes.append(SGLangLogprobs(tokens[i], tops[i], ids[i], starts[i]) if asked else None)
    if validated["return_text_in_logprobs"] and not any(wishes):
        message = "goes with return_logprob or token_ids_logprob only."
        raise FieldError("invalid_value", message, "return_text_in_logprobs")
    return wishes if any(wishes) else None


def _spread(validated: Mapping[str, Any], name: str, prompts: int, default: Any) -> list[Any]:
    given = validated[name]
    if given is None:
        return [default] * prompts
    if given.each and validated["n"] > 1 and name in ("logprob_start_len", "token_ids_logprob"):
        raise FieldError("invalid_value", "cannot be given per prompt with n above 1.", name)
    values: list[Any] = given.spread(prompts, name)
    return values


def scoring(
    wishes: Sequence[SGLangLogprobs | None] | None,
    prompts: int,
    alternatives: int | None,
    from_start: bool,
) -> list[dict[str, Any] | None] | None:
    """What a worker scores for each prompt: for `wishes`, and `alternatives` per token for the
    route's own field, prompt included where that is to be `from_start`."""
    scored = [_scored(wish, alternatives, from_start) for wish in wishes or [None] * prompts]
    return scored if any(each is not None for each in scored) else None


def _scored(
    wish: SGLangLogprobs | None, alternatives: int | None, from_start: bool
) -> dict[str, Any] | None:
    if wish is None and alternatives is None:
        return None
    top, ids, start = (wish.top, wish.ids, wish.start) if wish is not None else (0, (), -1)
    return {
        "top_logprobs_num": max(top, alternatives or 0),
        "logprob_start_len": 0 if from_start and alternatives is not None else start,
        "token_ids_logprob": list(ids),
    }
