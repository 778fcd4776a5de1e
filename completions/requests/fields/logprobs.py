"""Log probabilities: SGLang's fields, and what a worker has to score for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from completions.contract.sampling import MAX_LOGPROB_TOKEN_IDS, MAX_TOP_LOGPROBS
from completions.errors import FieldError
from completions.requests.fields.base import BooleanField, IntegerField
from completions.requests.fields.objects import StrictSerializer, Values
from completions.requests.fields.per_prompt import PerPromptField
from completions.requests.fields.tokens import TokenIdsField
from completions.responses.sglang import SGLangLogprobs


class ScoredIdsField(PerPromptField):
    """One id, an array of ids for all prompts, or an array of ids for each prompt."""

    def to_schema(self) -> dict[str, Any]:
        ids = self.child.to_schema()
        return {"anyOf": [ids["items"], ids, {"type": "array", "items": ids}]}

    def is_array(self, data: Any) -> bool:
        return type(data) is list and bool(data) and all(type(item) is not int for item in data)

    def to_internal_value(self, data: Any) -> Any:
        return super().to_internal_value([data] if type(data) is int else data)


class LogprobFields(StrictSerializer):
    """Each route declares OpenAI's `logprobs` itself."""

    return_logprob = PerPromptField(
        child=BooleanField(), required=False,
        help_text="Add the log probabilities of all sampled tokens to `meta_info`: "
        "`output_token_logprobs`, arrays of [log probability, id, text].",
    )  # fmt: skip
    top_logprobs_num = PerPromptField(
        child=IntegerField(min_value=0, max_value=MAX_TOP_LOGPROBS), required=False,
        help_text="With return_logprob: this many likeliest tokens of each position in "
        "`meta_info.output_top_logprobs`.",
    )  # fmt: skip
    logprob_start_len = PerPromptField(
        child=IntegerField(min_value=-1), required=False,
        help_text="With return_logprob: the same for the prompt from this position on, in "
        "`meta_info.input_token_logprobs`; -1, the default, for none.",
    )  # fmt: skip
    token_ids_logprob = ScoredIdsField(
        child=TokenIdsField(max_length=MAX_LOGPROB_TOKEN_IDS), required=False,
        help_text="Up to 128 ids whose log probabilities at each position are in "
        "`meta_info.output_token_ids_logprobs`.",
    )  # fmt: skip
    return_text_in_logprobs = BooleanField(
        default=False, help_text="Texts instead of null in the arrays of these fields."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogprobSettings:
    sglang: Sequence[SGLangLogprobs | None] | None
    """What SGLang's fields ask for, by prompt; None when they ask for nothing."""
    return_text: bool
    top: int | None
    """Likeliest tokens per position that OpenAI's field asks for; None without that field."""
    of_prompt: bool
    """Whether OpenAI's field asks for the prompt's tokens too."""

    @property
    def shows_prompts(self) -> bool:
        """Whether responses show the log probabilities of a prompt's tokens."""
        of_sglang = any(each is not None and each.start >= 0 for each in self.sglang or ())
        return of_sglang or (self.of_prompt and self.top is not None)

    def payload(self, prompts: int) -> list[dict[str, Any] | None] | None:
        """What a worker scores for each of so many prompts, as JSON."""
        scored = [self._scored(each) for each in self.sglang or [None] * prompts]
        return scored if any(each is not None for each in scored) else None

    def _scored(self, sglang: SGLangLogprobs | None) -> dict[str, Any] | None:
        if sglang is None and self.top is None:
            return None
        top, ids, start = (sglang.top, sglang.ids, sglang.start) if sglang else (0, (), -1)
        return {
            "top_logprobs_num": max(top, self.top or 0),
            "logprob_start_len": 0 if self.of_prompt and self.top is not None else start,
            "token_ids_logprob": list(ids),
        }


def logprob_settings(
    values: Values, prompts: Sequence[Sequence[int]], top: int | None, of_prompt: bool
) -> LogprobSettings:
    """The settings of validated fields; `top` and `of_prompt` are OpenAI's. Raises FieldError."""
    sglang = _sglang(values, prompts)
    if values["return_text_in_logprobs"] and sglang is None:
        message = "needs return_logprob or token_ids_logprob; add one or leave this out."
        raise FieldError("invalid_value", message, "return_text_in_logprobs")
    return LogprobSettings(
        sglang=sglang, return_text=values["return_text_in_logprobs"], top=top, of_prompt=of_prompt
    )


def _sglang(
    values: Values, prompts: Sequence[Sequence[int]]
) -> Sequence[SGLangLogprobs | None] | None:
    count = len(prompts)
    tokens = _spread(values, "return_logprob", count, False)
    tops = _spread(values, "top_logprobs_num", count, 0)
    starts = _spread(values, "logprob_start_len", count, -1)
    ids = _spread(values, "token_ids_logprob", count, ())
    asked: list[SGLangLogprobs | None] = []
    for i, prompt in enumerate(prompts):
        needs = "needs return_logprob; add it or leave this out."
        if tops[i] and not tokens[i]:
            raise FieldError("invalid_value", needs, "top_logprobs_num")
        if starts[i] >= 0 and not (tokens[i] or ids[i]):
            raise FieldError("invalid_value", needs, "logprob_start_len")
        if starts[i] > len(prompt):
            message = f"is {starts[i]}; it must be at most the prompt's length, {len(prompt)}."
            raise FieldError("integer_above_max_value", message, "logprob_start_len")
        some = tokens[i] or ids[i]
        asked.append(SGLangLogprobs(tokens[i], tops[i], ids[i], starts[i]) if some else None)
    return asked if any(asked) else None


def _spread(values: Values, name: str, prompts: int, default: Any) -> Sequence[Any]:
    given = values[name]
    if given is None:
        return [default] * prompts
    if given.each and values["n"] > 1 and name in ("logprob_start_len", "token_ids_logprob"):
        message = "must be one value for all prompts when n is above 1."
        raise FieldError("invalid_value", message, name)
    spread: Sequence[Any] = given.spread(prompts, name)
    return spread
