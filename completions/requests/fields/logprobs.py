"""Log probabilities: SGLang's fields, and what a worker has to score for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeGuard

from completions.contract.job_request import LogprobParams, LogprobsMode
from completions.contract.sampling import (
    MAX_LOGPROB_TOKEN_IDS,
    MAX_SUPPORT_IDS,
    MAX_TOP_LOGPROBS,
)
from completions.exceptions import FieldError
from completions.requests.context import Context
from completions.requests.fields.base import (
    BooleanField,
    ChoiceField,
    IntegerField,
    format_number,
)
from completions.requests.fields.lists import PerPrompt, PerPromptField
from completions.requests.fields.objects import StrictObject
from completions.requests.fields.tokens import TokenIdsField
from completions.responses.response_context import SGLangLogprobs


class ScoredIdsField(PerPromptField):
    """One id, an array of ids for all prompts, or an array of ids for each prompt."""

    def to_schema(self) -> dict[str, object]:
        ids = self.child.to_schema()
        return {"anyOf": [ids["items"], ids, {"type": "array", "items": ids}]}

    def is_array(self, data: object) -> TypeGuard[list[object]]:
        return type(data) is list and bool(data) and all(type(item) is not int for item in data)

    def read(self, data: object, context: Context | None = None) -> Any:
        return super().read([data] if type(data) is int else data, context)


class LogprobFields(StrictObject[object]):
    """Each route declares OpenAI's `logprobs` itself."""

    return_logprob = PerPromptField(
        "Add the log probabilities of all sampled tokens to `meta_info`: "
        "`output_token_logprobs`, arrays of [log probability, id, text].",
        child=BooleanField(),
    )
    top_logprobs_num = PerPromptField(
        "With return_logprob: this many likeliest tokens of each position in "
        "`meta_info.output_top_logprobs`; no effect without it.",
        child=IntegerField(min_value=0, max_value=MAX_TOP_LOGPROBS),
    )
    logprob_start_len = PerPromptField(
        "With return_logprob: the same for the prompt from this position on, in "
        "`meta_info.input_token_logprobs`; -1, the default, for none. No effect without it.",
        child=IntegerField(min_value=-1),
    )
    token_ids_logprob = ScoredIdsField(
        "Up to 128 ids whose log probabilities at each position are in "
        "`meta_info.output_token_ids_logprobs`.",
        child=TokenIdsField(max_length=MAX_LOGPROB_TOKEN_IDS),
    )
    logprobs_mode = ChoiceField(
        "Of the output's log probabilities, in all their forms. raw: under the model's own "
        "distribution. processed: under the one that tokens are drawn from, after penalties, bias, "
        "temperature, the constraint, top_k, top_p and min_p; -9999 for a token that could not be "
        "drawn. Those of prompts are always raw.",
        choices=list(LogprobsMode),
        default=LogprobsMode.RAW,
    )
    prompt_logprobs = IntegerField(
        "vLLM's: log probabilities of the prompt's tokens and of this many of the likeliest ones "
        "at each position, by token id, with rank and text. Not with stream.",
        min_value=0,
        max_value=MAX_TOP_LOGPROBS,
    )
    return_sampling_support = BooleanField(
        "Add `sampling_support` to each choice: for each token the number of tokens that it was "
        "drawn among (`counts`), and the logarithm of what they weighed together before "
        "the constraint, other bans, top_k, top_p and min_p (`log_mass`).",
        default=False,
    )
    sampling_support_ids = IntegerField(
        "With return_sampling_support: the likeliest of these tokens in `sampling_support.ids`, at "
        "most this many for each token; no effect without it.",
        default=0,
        min_value=0,
        max_value=MAX_SUPPORT_IDS,
    )
    return_text_in_logprobs = BooleanField(
        "Texts instead of null in the arrays of `meta_info`.", default=False
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
    mode: LogprobsMode = LogprobsMode.RAW
    prompt_top: int | None = None
    """The same as `top` for the prompt, which vLLM's field asks for."""
    support_ids: int | None = None
    """Ids of each token's support; None if the support is not wanted."""

    @property
    def is_whole_prompt_scored(self) -> bool:
        return self.prompt_top is not None or (self.of_prompt and self.top is not None)

    def make_params(self, prompts: int) -> tuple[LogprobParams | None, ...] | None:
        """Return what the engine scores for each of this many prompts; None for nothing."""
        params = tuple(self._make_one(each) for each in self.sglang or [None] * prompts)
        return params if any(each is not None for each in params) else None

    def _make_one(self, sglang: SGLangLogprobs | None) -> LogprobParams | None:
        if sglang is None and self.top is self.prompt_top is self.support_ids is None:
            return None
        top, ids, start = (sglang.top, sglang.ids, sglang.start) if sglang else (0, (), -1)
        return LogprobParams(
            top_logprobs_num=max(top, self.top or 0, self.prompt_top or 0),
            logprob_start_len=0 if self.is_whole_prompt_scored else start,
            token_ids_logprob=tuple(ids),
            mode=self.mode,
            support_ids=self.support_ids,
            ranks=self.prompt_top is not None,
        )


NO_LOGPROBS: Final = LogprobSettings(sglang=None, return_text=False, top=None, of_prompt=False)


def parse_logprobs(
    values: LogprobFields,
    prompts: Sequence[Sequence[int]],
    *,
    several: bool,
    streams: bool,
    top: int | None,
    of_prompt: bool,
) -> LogprobSettings:
    """Return the settings of validated fields; `several` says that `n` is above 1, `streams` that
    the answer is a stream; `top` and `of_prompt` are OpenAI's. Raises FieldError."""
    sglang = _parse_sglang(values, prompts, several)
    if values.prompt_logprobs is not None and streams:
        message = "cannot be combined with stream, as in vLLM. Send only one."
        raise FieldError(message, "prompt_logprobs")
    if values.return_text_in_logprobs and sglang is None:
        message = "needs return_logprob or token_ids_logprob; add one or leave this out."
        raise FieldError(message, "return_text_in_logprobs")
    return LogprobSettings(
        sglang=sglang,
        return_text=values.return_text_in_logprobs,
        top=top,
        of_prompt=of_prompt,
        mode=LogprobsMode(values.logprobs_mode),
        prompt_top=values.prompt_logprobs,
        support_ids=values.sampling_support_ids if values.return_sampling_support else None,
    )


def list_without_effect(values: LogprobFields) -> list[str]:
    """Return names of given fields that have an effect only with others, which are not given."""
    tokens, ids = values.return_logprob, values.token_ids_logprob
    has_tokens = tokens is not None and any(tokens.values)
    has_some = has_tokens or (ids is not None and any(ids.values))
    useful = {"top_logprobs_num": has_tokens, "logprob_start_len": has_some}
    useless = [n for n, use in useful.items() if getattr(values, n) is not None and not use]
    if values.sampling_support_ids and not values.return_sampling_support:
        useless.append("sampling_support_ids")
    return useless


def _parse_sglang(
    values: LogprobFields, prompts: Sequence[Sequence[int]], several: bool
) -> Sequence[SGLangLogprobs | None] | None:
    count = len(prompts)
    tokens = _spread(values, "return_logprob", count, several, False)
    tops = _spread(values, "top_logprobs_num", count, several, 0)
    starts = _spread(values, "logprob_start_len", count, several, -1)
    ids = _spread(values, "token_ids_logprob", count, several, ())
    settings: list[SGLangLogprobs | None] = []
    for i, prompt in enumerate(prompts):
        if not (tokens[i] or ids[i]):
            settings.append(None)
            continue
        if starts[i] > len(prompt):
            start = format_number(starts[i])
            message = f"is {start}; it must be at most the prompt's length, {len(prompt)}."
            raise FieldError(message, "logprob_start_len", code="integer_above_max_value")
        top = tops[i] if tokens[i] else 0
        settings.append(SGLangLogprobs(tokens[i], top, ids[i], starts[i]))
    return settings if any(settings) else None


def _spread(
    values: LogprobFields, name: str, prompts: int, several: bool, default: object
) -> Sequence[Any]:
    value: PerPrompt | None = getattr(values, name)
    if value is None:
        return [default] * prompts
    if value.each and several and name in ("logprob_start_len", "token_ids_logprob"):
        raise FieldError("must be one value for all prompts when n is above 1.", name)
    spread: Sequence[object] = value.spread(prompts, name)
    return spread
