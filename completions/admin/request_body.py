"""The request of an ended job as a body for POST /v1/completions: to copy, to try, to run again."""

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from completions.contract.job_request import JobRequest, Task
from completions.models import StoredPrompt, UsageRecord

_INTERNAL = ("bad_words", "stop_spans")
"""Parameters that requests express otherwise."""
_OPTIONS = "x-guidance"
"""llguidance's options in a schema, which `json_whitespace` and others set."""


def load_body(stored: StoredPrompt, record: UsageRecord) -> dict[str, Any] | None:
    """Return the body of a stored request, a chat's as the prompt that its template made; None if
    it scored given texts, or was stored by another version."""
    try:
        request = msgspec.convert(stored.document(), JobRequest, str_keys=True)
    except msgspec.ValidationError:
        return None
    if request.task is not Task.GENERATE or not request.prompts:
        return None
    sampling: dict[str, Any] = json.loads(msgspec.json.encode(request.sampling))
    prompts = [list(ids) for ids in request.prompts]
    return {
        "model": f"{record.model}:{record.adapter}" if record.adapter else record.model,
        "prompt": prompts[0] if len(prompts) == 1 else prompts,
        "max_tokens": request.sampling.max_tokens,
        "temperature": request.sampling.temperature,
        "seed": request.sampling.seed,
        **{name: value for name, value in sampling.items() if name not in _INTERNAL},
        **(write_constraint(request.grammar) if request.grammar else {}),
        **({"close": True} if request.close else {}),
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


def _clean(part: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what a request may not say: options of the schema, and what is null."""
    cleaned = {name: value for name, value in part.items() if value is not None}
    if isinstance(schema := cleaned.get("json_schema"), dict):
        cleaned["json_schema"] = {n: value for n, value in schema.items() if n != _OPTIONS}
    return cleaned
