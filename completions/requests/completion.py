"""The body of POST /v1/completions: what it adds to the fields that both routes take."""

from collections.abc import Mapping, Sequence
from typing import Any

from completions.errors import FieldError
from completions.requests import infilling
from completions.requests.fields import (
    BooleanField,
    IntegerField,
    ListField,
    ObjectField,
    TextField,
)
from completions.requests.generation import (
    OF_OTHER_SYSTEMS,
    GenerationRequestSerializer,
    check_choices,
    check_length,
)
from completions.requests.logprob_fields import MAX_TOP
from completions.requests.token_fields import PromptField

DEFAULT_MAX_TOKENS = 16
_INSTEAD = {
    **OF_OTHER_SYSTEMS,
    "messages": "POST them to /v1/chat/completions.",
    "input_ids": "Use prompt.",
    "truncate_prompt_tokens": "Use truncate_sequence.",
}


class CompletionRequestSerializer(GenerationRequestSerializer):
    """Validated, it holds what GenerationRequestSerializer says, and `truncated_tokens`."""

    later_fields = _INSTEAD

    prompt = PromptField(
        help_text="Token ids, or up to 256 arrays of them; nothing is prepended. Texts where the "
        "model's capability `text_prompts` says so."
    )
    max_tokens = IntegerField(
        default=DEFAULT_MAX_TOKENS, min_value=0,
        help_text="Most tokens to generate, per choice; 0 only with echo.",
    )  # fmt: skip
    max_completion_tokens = IntegerField(
        required=False, min_value=0, help_text="The same as max_tokens."
    )
    best_of = IntegerField(
        required=False, min_value=1, max_value=128,
        help_text="Candidates per prompt, of which the n with the highest mean log probability "
        "per token are returned, the best first; all are counted. Not with stream.",
    )  # fmt: skip
    echo = BooleanField(default=False, help_text="Put the prompt's text before the completion's.")
    logprobs = IntegerField(
        required=False, min_value=0, max_value=MAX_TOP,
        help_text="Log probabilities of each token in the text, the prompt's too with echo, and "
        "of this many likeliest ones, natural logarithms of the unmodified distribution.",
    )  # fmt: skip
    truncate_sequence = BooleanField(
        default=False,
        help_text="Cut the beginning of prompts that do not fit the context with max_tokens.",
    )
    suffix = TextField(
        required=False,
        help_text="Text that follows the completion; for models with the capability `fim`.",
    )
    parallel_tool_calls = BooleanField(required=False, help_text="Without effect.")
    tools = ListField(
        child=ObjectField(), required=False,
        help_text='Without effect, and only with tool_choice "none"; chat completions use them.',
    )  # fmt: skip
    tool_choice = TextField(required=False, help_text='Only "none", which is without effect.')

    def prompts(self, validated: Mapping[str, Any]) -> Sequence[Sequence[int]]:
        prompts: Sequence[Sequence[int]] = validated["prompt"]
        return prompts

    def check(self, validated: dict[str, Any]) -> dict[str, Any]:
        self._check_tools(validated)
        self._settle_max_tokens(validated)
        self._check_echo(validated)
        self._check_best_of(validated)
        self._settle_prompts(validated)
        validated = super().check(validated)
        check_length(validated["prompt"], self._room_asked(validated), self.files.max_model_len)
        return validated

    def _check_tools(self, validated: Mapping[str, Any]) -> None:
        choice = validated["tool_choice"]
        for name in ("tools", "tool_choice"):
            if validated[name] is not None and choice != "none":
                message = "tools are called by POST /v1/chat/completions."
                raise FieldError("unsupported_parameter", message, name)

    def _check_echo(self, validated: Mapping[str, Any]) -> None:
        if validated["max_tokens"] == 0 and not validated["echo"]:
            message = "must be at least 1 without echo."
            raise FieldError("integer_below_min_value", message, "max_tokens")
        if validated["max_tokens"] == 0 and validated["return_hidden_states"]:
            message = "there is no last token with max_tokens 0."
            raise FieldError("invalid_value", message, "return_hidden_states")
        if validated["echo"] and validated["suffix"] is not None:
            raise FieldError("invalid_value", "cannot be combined with echo.", "suffix")

    def _check_best_of(self, validated: Mapping[str, Any]) -> None:
        best_of = validated["best_of"]
        if best_of is None:
            return
        if best_of < validated["n"]:
            message = f"must be at least n ({validated['n']})."
            raise FieldError("invalid_value", message, "best_of")
        if validated["stream"]:
            raise FieldError("invalid_value", "cannot be combined with stream.", "best_of")
        check_choices(len(validated["prompt"]), best_of, "best_of")

    def _settle_max_tokens(self, validated: dict[str, Any]) -> None:
        other = validated["max_completion_tokens"]
        if other is None:
            return
        if self.initial_data.get("max_tokens") is None:
            validated["max_tokens"] = other
        elif validated["max_tokens"] != other:
            message = f"is not max_tokens ({validated['max_tokens']}); give one of them."
            raise FieldError("invalid_value", message, "max_completion_tokens")

    def _room_asked(self, validated: Mapping[str, Any]) -> int:
        """Tokens of the context that a completion may take."""
        asked: int = validated["max_tokens"]
        return min(asked, self.files.max_model_len - 1) if validated["truncate_sequence"] else asked

    def _settle_prompts(self, validated: dict[str, Any]) -> None:
        """Cut what does not fit and is to be cut, then put the suffix where the model reads it."""
        around = infilling.around(validated["suffix"], self.files)
        prompts, context = validated["prompt"], self.files.max_model_len
        validated["truncated_tokens"] = 0
        if validated["truncate_sequence"]:
            room = context - self._room_asked(validated) - around.length
            if room > 0:
                kept = [prompt[-room:] for prompt in prompts]
                validated["truncated_tokens"] = sum(map(len, prompts)) - sum(map(len, kept))
                prompts = kept
        validated["prompt"] = [around.put(prompt) for prompt in prompts]
