"""The bodies of other engines' own routes: SGLang's /generate and vLLM's /inference/v1/generate.

Their fields are those of a completion under other names, and each body becomes a completion:
sgl-project/sglang, docs/basic_usage/sampling_params.md; vllm-project/vllm,
entrypoints/serve/disagg/protocol.py.
"""

from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any, ClassVar, Self

from completions.exceptions import APIError, FieldError
from completions.requests.completion import CompletionRequestObject
from completions.requests.context import Context
from completions.requests.fields.base import BooleanField, IntegerField, TextField, name_type
from completions.requests.fields.objects import StrictObject
from completions.requests.fields.prompt import TO_CONTEXT, IdsPromptField, TextPromptField
from completions.requests.fields.routing import RID_PATTERN
from completions.requests.generation import GenerationRequest
from completions.requests.model import ModelRequestObject

PARAMS = "sampling_params"
_DEFAULT_LENGTH = 128
"""SGLang's default of max_new_tokens."""
_NO_MEDIA = "This service takes texts and token ids alone; omit it."
_NO_SPLIT = "Prompts and outputs are computed by the same worker; omit it."


class BorrowingObject(StrictObject[object]):
    """An object whose fields, in part, are a completion's. `same` has the names of those that keep
    theirs, `renamed` a completion's field by each other name."""

    renamed: ClassVar[Mapping[str, str]] = {}

    def __init_subclass__(
        cls, same: Iterable[str] = (), renamed: Mapping[str, str] | None = None
    ) -> None:
        cls.renamed = {name: name for name in same} | dict(renamed or {})
        for name, original in cls.renamed.items():
            if name not in vars(cls):
                field = copy(CompletionRequestObject.fields[original])
                field.__set_name__(cls, name)
                setattr(cls, name, field)
        super().__init_subclass__()

    @classmethod
    def rename(cls, values: Self, given: Mapping[str, object]) -> dict[str, object]:
        """Return the values of the fields that `given` has, by the names of a completion."""
        read = values.list_values()
        present = (name for name in cls.renamed if given.get(name) is not None)
        return {cls.renamed[name]: read[name] for name in present}


class NativeRequestObject(BorrowingObject, ModelRequestObject[GenerationRequest]):
    """A body that becomes a completion's. Each route declares the object `sampling_params`."""

    params: ClassVar[type[BorrowingObject]]
    own_fields: ClassVar[Mapping[str, str]] = {}
    """Fields of its own, by the completion's fields that they become."""

    def make(self, values: Self, context: Context) -> GenerationRequest:
        given: Any = context.given
        params = given.get(PARAMS) or {}
        read = values.list_values()[PARAMS] or self.params.fill({})
        try:
            found = self.rename(values, given) | self.params.rename(read, params)
            completion = CompletionRequestObject.fill(self.complete(values, found, context))
            known = Context(context.principal, context.model, found)
            request = CompletionRequestObject().make(completion, known)
        except FieldError as error:
            error.path = self.find_path(error.path)
            raise
        except APIError as error:
            error.param = error.param and self.find_path(error.param)
            raise
        if request.constraint is not None:
            path = self.find_path(request.constraint.error_path)
            request = replace(request, constraint=request.constraint._replace(path=path))
        ignored = [*map(self.find_path, request.ignored), *self.list_ignored_params(params)]
        return replace(request, ignored=tuple(ignored))

    def complete(
        self, values: Self, found: Mapping[str, object], context: Context
    ) -> Mapping[str, object]:
        """Return the completion's values: those that are given, and what the route's own fields
        and defaults mean. Raises FieldError."""
        raise NotImplementedError

    def list_ignored_params(self, params: Mapping[str, object]) -> list[str]:
        """Return paths of given parameters without effect."""
        return []

    @classmethod
    def find_path(cls, path: str) -> str:
        """Return the path in this body of what has `path` in a completion's."""
        end = min(i for i in (path.find("."), path.find("["), len(path)) if i >= 0)
        head, rest = path[:end], path[end:]
        for prefix, names in ((f"{PARAMS}.", cls.params.renamed), ("", cls.renamed)):
            for name, original in names.items():
                if original == head:
                    return f"{prefix}{name}{rest}"
        return f"{cls.own_fields.get(head, head)}{rest}"

    @classmethod
    def is_long(cls, data: object) -> bool:
        if type(data) is not dict:
            return False
        prompts = cls.own_fields["prompt"], "text"
        return super().is_long(
            {"prompt" if name in prompts else name: each for name, each in data.items()}
        )


_SAMPLING = (
    "n", "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty",
    "repetition_penalty", "stop", "stop_token_ids", "ignore_eos", "logit_bias",
    "skip_special_tokens", "spaces_between_special_tokens",
)  # fmt: skip
"""Parameters that both engines have under a completion's names."""


class SGLangParamsObject(
    BorrowingObject,
    same=(
        *_SAMPLING, "stop_regex", "no_stop_trim", "json_schema", "regex", "ebnf", "structural_tag",
        "custom_params",
    ),
    renamed={
        "max_new_tokens": "max_tokens",
        "min_new_tokens": "min_tokens",
        "sampling_seed": "seed",
    },
):  # fmt: skip
    unsupported = {"stream_interval": "Every event is sent at once; omit it."}

    max_new_tokens = IntegerField(
        "Most tokens to generate, per output.", default=_DEFAULT_LENGTH, min_value=1
    )


class SGLangGenerateObject(
    NativeRequestObject,
    same=(
        "stream", "rid", "return_logprob", "logprob_start_len", "top_logprobs_num",
        "token_ids_logprob", "return_text_in_logprobs", "lora_path", "custom_logit_processor",
        "priority", "return_routed_experts", "routed_experts_start_len",
    ),
    renamed={"extra_key": "cache_salt"},
):  # fmt: skip
    params = SGLangParamsObject
    own_fields = {"prompt": "input_ids"}
    unsupported = {
        **dict.fromkeys(("image_data", "video_data", "audio_data", "input_embeds"), _NO_MEDIA),
        **dict.fromkeys(
            ("bootstrap_host", "bootstrap_port", "bootstrap_room", "disagg_prefill_dp_rank"),
            _NO_SPLIT,
        ),
        "return_hidden_states": "POST /v1/completions takes it.",
        "require_reasoning": "POST /v1/chat/completions constrains what follows the thoughts.",
        "session_params": "POST /v1/completions takes session.",
    }

    text = TextPromptField("Instead of input_ids: a text, or an array of them.")
    input_ids = IdsPromptField("Token ids, or an array of such arrays; nothing is prepended.")
    sampling_params = SGLangParamsObject("How tokens are chosen, the same for all prompts.")

    def complete(
        self, values: Self, found: Mapping[str, object], context: Context
    ) -> Mapping[str, object]:
        if values.text is not None and values.input_ids is not None:
            raise FieldError("cannot be combined with text. Send only one.", "prompt")
        prompts = values.text if values.input_ids is None else values.input_ids
        if prompts is None:
            message = "this field is required, or text."
            raise FieldError(message, "prompt", code="missing_required_parameter")
        return {"max_tokens": _DEFAULT_LENGTH, **found, "prompt": prompts}

    def make(self, values: Self, context: Context) -> GenerationRequest:
        request = super().make(values, context)
        prompts: object = context.given.get("input_ids") or context.given.get("text")
        is_batch = type(prompts) is list and type(prompts[0]) is not int
        return replace(request, is_batch=is_batch or request.job.sampling.n > 1)


class VLLMParamsObject(
    BorrowingObject,
    same=(
        *_SAMPLING, "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs", "bad_words",
        "allowed_token_ids", "truncate_prompt_tokens", "structured_outputs",
    ),
):  # fmt: skip
    unsupported = {
        "include_stop_str_in_output": "The answer has no text; omit it.",
        "output_kind": "stream decides; omit it.",
        "extra_args": "Omit it.",
        "flat_logprobs": "Omit it.",
    }

    max_tokens = IntegerField(
        "Most tokens to generate, per choice; default: to the end of the context.", min_value=1
    )
    detokenize = BooleanField("No effect: the answer has token ids alone.")


class VLLMGenerateObject(
    NativeRequestObject,
    same=("stream", "stream_options", "cache_salt"),
    renamed={"request_id": "rid"},
):
    params = VLLMParamsObject
    own_fields = {"prompt": "token_ids"}
    unsupported = {
        **dict.fromkeys(("features", "assistant_tokens_mask", "token_offsets"), _NO_MEDIA),
        **dict.fromkeys(("kv_transfer_params", "ec_transfer_params"), _NO_SPLIT),
    }

    request_id = TextField(
        "The client's own id: 1-64 of A-Z a-z 0-9 . _ : -, not used before by this API key within "
        "24 hours.",
        pattern=RID_PATTERN,
    )
    token_ids = IdsPromptField("The prompt's token ids; nothing is prepended.", required=True)
    sampling_params = VLLMParamsObject("How tokens are chosen.", required=True)
    priority = IntegerField(
        "Only 0; POST /v1/completions takes priorities.", default=0, min_value=0, max_value=0
    )

    def complete(
        self, values: Self, found: Mapping[str, object], context: Context
    ) -> Mapping[str, object]:
        given: Any = context.given["token_ids"]
        if type(given[0]) is not int:
            message = f"must be one array of token ids, not of {name_type(given[0])}s."
            raise FieldError(message, "prompt", code="invalid_type")
        (prompt,) = prompts = values.token_ids
        most: Any = found.get("truncate_prompt_tokens", TO_CONTEXT)
        kept = len(prompt) if most == TO_CONTEXT else min(len(prompt), most)
        room = context.model.files.max_model_len - kept
        return {"max_tokens": max(1, room), **found, "prompt": prompts}

    def list_ignored_params(self, params: Mapping[str, object]) -> list[str]:
        return [f"{PARAMS}.detokenize"] if params.get("detokenize") is not None else []
