"""GET /v1/models: what is served, and what each model can do."""

from typing import Any

from rest_framework.response import Response

from completions.catalog import model_files
from completions.catalog.entries import ModelEntry
from completions.catalog.model_files import ModelFiles, ModelFilesError
from completions.contract.sampling import INTEGERS
from completions.http import runtime
from completions.http.base import APIRequest, AsyncAPIView
from completions.requests.model import find_entry

OWNER = "quire"


class ModelsView(AsyncAPIView):
    """The models that the calling key may use and their adapters, with or without a live worker."""

    async def get(self, request: APIRequest) -> Response:
        live = await runtime.live_models()
        may_use, served = request.auth.may_use, model_files.served_models()
        models = [_model(entry, None, live) for entry in served if may_use(entry.id)]
        adapted = [
            _model(entry, name, live)
            for entry in served
            for name in entry.adapters
            if may_use(entry.id) or may_use(f"{entry.id}:{name}")
        ]
        return Response({"object": "list", "data": models + adapted})


class ModelView(AsyncAPIView):
    """One model, or `base:adapter`; its id may hold slashes."""

    async def get(self, request: APIRequest, model_id: str) -> Response:
        entry, adapter = find_entry(model_id, request.auth)
        return Response(_model(entry, adapter, await runtime.live_models()))


def _model(entry: ModelEntry, adapter: str | None, live: set[str]) -> dict[str, Any]:
    """OpenAI's model object with ours added; facts are null while the model's files are missing."""
    try:
        files = model_files.load(entry)
    except ModelFilesError:
        files = None
    return {
        "id": entry.id if adapter is None else f"{entry.id}:{adapter}",
        "object": "model",
        "created": files.created if files else 0,
        "owned_by": OWNER,
        "root": entry.id,
        "parent": None if adapter is None else entry.id,
        "status": "loaded" if entry.id in live else "unloaded",
        "max_model_len": files.max_model_len if files else None,
        "vocab_size": files.vocab_size if files else None,
        "max_token_id": files.vocab_size - 1 if files else None,
        "eos_token_ids": files.eos_token_ids if files else None,
        "default_max_tokens": INTEGERS["max_tokens"].default,
        "prices_per_million_tokens": entry.prices or None,
        "capabilities": _capabilities(entry, files) if files else None,
    }


def _capabilities(entry: ModelEntry, files: ModelFiles) -> dict[str, Any]:
    """Names as in the contract, section 5.1."""
    return {
        "text_prompts": files.text_prompts,
        "token_prompts": True,
        "chat": files.chat_template is not None,
        "tools": files.tool_format is not None,
        "thinking": files.thinking_marks is not None,
        "ebnf": True,
        "regex": True,
        "json_schema": True,
        "structural_tag": True,
        "lark": True,
        "logprobs": True,
        "hidden_states": True,
        "routed_experts": files.routes_experts,
        "fim": files.fim_token_ids is not None,
        "adapters": list(entry.adapters),
    }
