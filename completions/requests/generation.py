"""What both completion routes have in common: the fields, the job, the view of its responses."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from completions.accounts.keys import Principal
from completions.catalog import model_files
from completions.errors import APIError, FieldError
from completions.grammars import Constraint
from completions.models import Scope
from completions.requests.constraint import ConstraintFields, constraint_of, judge
from completions.requests.ignored_fields import IgnoredFields
from completions.requests.logprob_fields import NativeLogprobFields, native_of, scoring
from completions.requests.model import ModelRequestSerializer
from completions.requests.processing_fields import ProcessingFields, check_processing, processing_of
from completions.requests.return_fields import ReturnFields, check_returns
from completions.requests.routing_fields import (
    RoutingFields,
    adapters_of,
    check_priority,
    check_rids,
    salt_of,
)
from completions.requests.sampling_fields import SamplingFields, check_sampling, sampling_of

MAX_CHOICES = 1024
"""prompts x n of one request."""
OF_OTHER_SYSTEMS = {
    "sampling_params": "Give its fields at the top level of the body.",
    "text": "Use prompt.",
    "max_new_tokens": "Use max_tokens.",
    "guided_json": "Use json_schema.",
    "guided_regex": "Use regex.",
    "guided_grammar": "Use ebnf.",
    "guided_choice": "Use regex, or json_schema with an enum.",
    "structured_outputs": "Use json_schema, regex, ebnf or structural_tag.",
    "prompt_logprobs": "Use return_logprob with logprob_start_len.",
    "include_stop_str_in_output": "Use no_stop_trim.",
    "return_tokens_as_token_ids": "Use return_token_ids.",
    "bad_words": 'Use custom_logit_processor "disallowed_tokens" with token ids.',
    "allowed_token_ids": "Use a constraint, or logit_bias.",
    "extra_key": "Use cache_salt.",
}
"""Names of SGLang's native route and of vLLM, and what to send here instead."""


class GenerationRequestSerializer(
    ModelRequestSerializer,
    ConstraintFields,
    SamplingFields,
    ProcessingFields,
    ReturnFields,
    NativeLogprobFields,
    RoutingFields,
    IgnoredFields,
):
    """The fields that both routes take. A subclass adds the prompt in its form, and `max_tokens`.

    Validated, it holds every field, and `constraint` (a Constraint or None), `adapters` (a name or
    None per prompt), `native` (a wish or None per prompt, or None), `base_model` (the served
    model that `model` names), `default_length` (whether it leaves max_tokens to its default) and
    `cache` (what prefixes may be shared under).
    """

    def prompts(self, validated: Mapping[str, Any]) -> Sequence[Sequence[int]]:
        """The token ids to complete, as far as they are known yet."""
        raise NotImplementedError

    def check(self, validated: dict[str, Any]) -> dict[str, Any]:
        prompts = self.prompts(validated)
        validated["constraint"] = constraint_of(validated, self.files)
        if validated["ignore_eos"] and not self._names_a_length():
            message = "this field is required with ignore_eos."
            raise FieldError("missing_required_parameter", message, "max_tokens")
        check_sampling(validated)
        check_processing(validated, self.entry)
        check_choices(len(prompts), validated["n"])
        check_returns(validated, self.files, prompts)
        validated["native"] = native_of(validated, prompts)
        principal = self.principal
        if self.initial_data.get("priority") is None:
            validated["priority"] = min(principal.default_priority, principal.max_priority)
        check_priority(validated["priority"], principal)
        _check_hidden_states(validated, principal)
        check_rids(validated["rid"], len(prompts))
        validated["adapters"] = adapters_of(validated, self.named_adapter, self.entry, len(prompts))
        validated["default_length"] = not self._names_a_length()
        validated["cache"] = salt_of(validated["cache_salt"], self.principal)
        validated["base_model"] = self.entry.id
        return validated

    def _names_a_length(self) -> bool:
        given = self.initial_data
        return any(given.get(name) is not None for name in ("max_tokens", "max_completion_tokens"))


def _check_hidden_states(validated: Mapping[str, Any], principal: Principal) -> None:
    """Raises APIError."""
    if validated["return_hidden_states"] and Scope.HIDDEN_STATES not in principal.scopes:
        message = (
            "return_hidden_states: this API key lacks the scope 'hidden_states'. Leave it out, or "
            "ask your administrator for it."
        )
        raise APIError("permission_denied", message, "return_hidden_states")


def check_choices(prompts: int, n: int, field: str = "n") -> None:
    """Raise FieldError when one request asks for too many choices, or candidates for them."""
    if prompts * n > MAX_CHOICES:
        message = f"must be at most {MAX_CHOICES // prompts} with {prompts} prompts."
        raise FieldError("integer_above_max_value", message, field)


def check_length(
    prompts: Sequence[Sequence[int]], max_tokens: int, max_model_len: int, field: str = "prompt"
) -> None:
    """Raise FieldError when a prompt and what may follow it exceed the model's context."""
    index, longest = max(enumerate(map(len, prompts)), key=lambda pair: pair[1])
    if longest + max(max_tokens, 1) > max_model_len:
        which = "it" if len(prompts) == 1 else f"number {index}"
        message = (
            f"{which} has {longest} tokens and max_tokens is {max_tokens}, together more than the "
            f"model's context length of {max_model_len}. Shorten it or lower max_tokens."
        )
        raise FieldError("context_length_exceeded", message, field)


async def generation_request(
    validated: dict[str, Any], alternatives: int | None = None, from_start: bool = False
) -> dict[str, Any]:
    """The job for a worker. Raises APIError when the constraint cannot be used.

    How long that was judged is added to `validated`, as `grammar_compile_ms`.

    `alternatives` is how many likeliest tokens the route's own field for log probabilities asks
    for, of the prompt's tokens too where that is to be `from_start`.
    """
    constraint: Constraint | None = validated["constraint"]
    grammar = None
    validated["grammar_compile_ms"] = None
    if constraint is not None:
        model = model_files.load(model_files.served_models().choose(validated["base_model"]))
        began = time.monotonic()
        grammar = await judge(constraint, model)
        validated["grammar_compile_ms"] = round((time.monotonic() - began) * 1000, 3)
    return {
        "prompts": validated["prompt"],
        "sampling": {**sampling_of(validated), **processing_of(validated)},
        "grammar": grammar,
        "adapters": validated["adapters"],
        "priority": validated["priority"],
        "cache_salt": validated["cache"],
        "return_hidden_states": validated["return_hidden_states"],
        "return_routed_experts": validated["return_routed_experts"],
        "routed_experts_start_len": validated["routed_experts_start_len"],
        "logprobs": scoring(
            validated["native"], len(validated["prompt"]), alternatives, from_start
        ),
    }


def view_fields(validated: Mapping[str, Any]) -> dict[str, Any]:
    """What a View of either route holds, but for its id."""
    model = model_files.load(model_files.served_models().choose(validated["base_model"]))
    prompts: Sequence[Sequence[int]] = validated["prompt"]
    options = validated["stream_options"] or {}
    rid = validated["rid"]
    native = validated["native"]
    told = ("return_meta_info", "rid", "stop_regex", "return_routed_experts", "native")
    wanted = native is not None and any(wish and wish.start >= 0 for wish in native)
    return {
        "model": validated["model"],
        "base_model": None if validated["model"] == model.id else model.id,
        "created": int(time.time()),
        "n": validated["n"],
        "prompt_lengths": [len(prompt) for prompt in prompts],
        "prompts": prompts if wanted or validated["return_token_ids"] else None,
        "return_token_ids": validated["return_token_ids"],
        "sglang_logprobs": native and [wish and list(wish) for wish in native],
        "text_in_logprobs": validated["return_text_in_logprobs"],
        "meta_info": any(validated[name] for name in told),
        "hidden_states": validated["return_hidden_states"],
        "routed_experts": validated["return_routed_experts"],
        "cached_tokens_details": validated["return_cached_tokens_details"],
        "rid": None if rid is None else rid.values if rid.each else rid.values[0],
        "include_usage": options.get("include_usage", False),
        "continuous_usage_stats": options.get("continuous_usage_stats", False),
        "obfuscation": options.get("include_obfuscation", False),
        "prices": model_files.served_models().choose(model.id).prices or None,
        "default_length": validated["default_length"],
        "constrained": validated["constraint"] is not None,
        "grammar_compile_ms": validated.get("grammar_compile_ms"),
        "weight_version": model.weight_version,
    }
