"""The request of an ended job as a body for POST /v1/completions: to copy, to try, to run again."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from completions.catalog import model_files
from completions.catalog.entries import CatalogError
from completions.catalog.model_files import ModelFilesError
from completions.contract.job_request import JobRequest, LogprobParams, LogprobsMode, Task
from completions.contract.json_lines import decompress_first
from completions.contract.sampling import SamplingParams
from completions.models import StoredPrompt, UsageRecord
from completions.responses.response_context import ResponseFields, SGLangLogprobs

_LEFT_OUT = ("max_tokens", "bad_words", "stop_spans")
"""Parameters of the worker that bodies express otherwise."""
_OPTIONS = "x-guidance"
"""llguidance's options in a schema, which `json_whitespace` and others set."""
_SALT = "salt:"
"""What is before a salt that a request chose itself."""


def load_body(stored: StoredPrompt, record: UsageRecord) -> dict[str, Any] | None:
    """Return the body of a stored request, a chat's as the prompt that its template made; None if
    it was stored by another version. Ids of the client's own are left out: they are used."""
    try:
        request = msgspec.convert(stored.document(), JobRequest, str_keys=True)
    except msgspec.ValidationError:
        return None
    if not request.prompts:
        return None
    prompts = [list(ids) for ids in request.prompts]
    more = {
        "bad_words": _decode_words(request.sampling.bad_words, record.model),
        "close": request.close,
        "lora_path": None if record.adapter else request.adapters and list(request.adapters),
        "priority": request.priority or None,
        "cache_salt": request.cache_salt.partition(_SALT)[2],
        "return_hidden_states": request.return_hidden_states,
        "return_routed_experts": request.return_routed_experts,
        "routed_experts_start_len": request.routed_experts_start_len or None,
        "continuation_token_ids": [[list(ids) for ids in each] for each in request.continuations],
        **_write_returns(request.logprobs or (), stored),
    }
    return {
        "model": f"{record.model}:{record.adapter}" if record.adapter else record.model,
        "prompt": prompts[0] if len(prompts) == 1 else prompts,
        **({} if request.task is Task.SCORE else _write_sampling(request.sampling)),
        **(write_constraint(request.grammar) if request.grammar else {}),
        **{name: value for name, value in more.items() if value or type(value) is int},
    }


def _write_sampling(sampling: SamplingParams) -> dict[str, Any]:
    changed: dict[str, Any] = json.loads(msgspec.json.encode(sampling))
    return {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
        **{name: value for name, value in changed.items() if name not in _LEFT_OUT},
    }


def write_constraint(grammar: str) -> dict[str, Any]:
    """Return llguidance's text of a grammar as the fields of a request."""
    asked = {"return_meta_info": True}
    if not grammar.lstrip().startswith("{"):
        return {"grammar": {"type": "lark", "value": grammar}, **asked}
    parts = [_clean(part) for part in json.loads(grammar)["grammars"]]
    if len(parts) == 1 and "json_schema" in parts[0]:
        return {"json_schema": parts[0]["json_schema"], **asked}
    return {"grammar": {"type": "llguidance", "value": {"grammars": parts}}, **asked}


def _clean(part: Mapping[str, object]) -> dict[str, Any]:
    """Leave out what a request may not say: options of the schema, and what is null."""
    cleaned = {name: value for name, value in part.items() if value is not None}
    if isinstance(schema := cleaned.get("json_schema"), dict):
        cleaned["json_schema"] = {n: value for n, value in schema.items() if n != _OPTIONS}
    return cleaned


class _Returns(ResponseFields, frozen=True):
    """What an answer is built from, a chat's too."""

    alternatives: int | None = None
    """As `logprobs`, of a chat."""


def _write_returns(scored: Sequence[LogprobParams | None], stored: StoredPrompt) -> dict[str, Any]:
    """Return the fields that say what the answer has beside its text, where it was stored."""
    if not stored.events:
        return {}
    context = _Returns.read(decompress_first(stored.events))
    params = next((each for each in scored if each is not None), LogprobParams())
    top = context.alternatives if context.logprobs is None else context.logprobs
    counts = {"logprobs": top, "prompt_logprobs": context.prompt_logprobs}
    return {
        **{name: count for name, count in counts.items() if count is not None},
        "echo": context.echo is not None,
        "logprobs_mode": "processed" if params.mode is LogprobsMode.PROCESSED else None,
        "return_sampling_support": context.sampling_support,
        "sampling_support_ids": params.support_ids or None,
        "return_token_ids": context.return_token_ids,
        "return_cached_tokens_details": context.cached_tokens_details,
        "return_text_in_logprobs": context.text_in_logprobs,
        **_write_sglang(context.sglang_logprobs or ()),
    }


def _write_sglang(wanted: Sequence[SGLangLogprobs | None]) -> dict[str, Any]:
    if not wanted:
        return {}
    each = [
        settings or SGLangLogprobs(tokens=False, top=0, ids=(), start=-1) for settings in wanted
    ]
    columns: Mapping[str, tuple[list[Any], object]] = {  # with the default
        "return_logprob": ([one.tokens for one in each], False),
        "top_logprobs_num": ([one.top for one in each], 0),
        "logprob_start_len": ([one.start for one in each], -1),
        "token_ids_logprob": ([list(one.ids) for one in each], []),
    }
    return {
        name: values[0] if len(values) == 1 else values
        for name, (values, default) in columns.items()
        if any(value != default for value in values)
    }


def _decode_words(words: Sequence[Sequence[int]], model: str) -> list[str]:
    """Return the texts of words, each once: it has tokens with and without a space before it."""
    try:
        tokenizer = model_files.load(model_files.load_catalog().choose(model)).tokenizer
    except (CatalogError, ModelFilesError):  # the model is no longer served
        return []
    texts: Iterator[str] = (tokenizer.decode(list(ids)).lstrip() for ids in words)
    return list(dict.fromkeys(filter(None, texts)))
