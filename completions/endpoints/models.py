"""GET /v1/models: the served models and their capabilities."""

from completions.accounts.keys import Principal
from completions.catalog import model_files
from completions.catalog.entries import ModelEntry
from completions.catalog.model_files import ModelFiles, ModelFilesError
from completions.chat.chat_style import find_chat_style, list_abilities
from completions.contract.sampling import INTEGERS
from completions.http.base import APIRequest, AsyncAPIView
from completions.http.bodies import JSONResponse
from completions.http.query import refuse_unknown
from completions.jobs.workers import LiveModels
from completions.requests.adapters import list_adapters
from completions.requests.fields.constraint import CONSTRAINT_KINDS
from completions.requests.model import find_entry

OWNER = "quire"
_EVERY_MODEL = (
    "token_prompts",
    *(kind.capability for kind in CONSTRAINT_KINDS if kind.capability),
    "logprobs",
    "processed_logprobs",
    "sampling_support",
    "scores",
    "close",
    "hidden_states",
)
"""Capabilities that no model lacks."""


class ModelsView(AsyncAPIView):
    """The models that the calling key may use and their adapters, with or without live workers."""

    async def get(self, request: APIRequest) -> JSONResponse:
        refuse_unknown(request, ())
        live = await request.process.list_live_models()
        may_use, served = request.auth.may_use, model_files.load_catalog()
        models = [
            _make_model(entry, None, live, request.auth) for entry in served if may_use(entry.id)
        ]
        adapted = [
            _make_model(entry, name, live, request.auth)
            for entry in served
            for name in list_adapters(entry, request.auth)
            if may_use(entry.id) or may_use(f"{entry.id}:{name}")
        ]
        return JSONResponse({"object": "list", "data": models + adapted})


class ModelView(AsyncAPIView):
    """One model, or `base:adapter`; the id may contain slashes."""

    async def get(self, request: APIRequest, model_id: str) -> JSONResponse:
        entry, adapter = find_entry(model_id, request.auth)
        live = await request.process.list_live_models()
        return JSONResponse(_make_model(entry, adapter, live, request.auth))


def _make_model(
    entry: ModelEntry, adapter: str | None, live: LiveModels, principal: Principal
) -> dict[str, object]:
    """Return OpenAI's model object with Quire's fields, some of them null while files are
    missing."""
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
        "status": "loaded" if entry.id in live.loaded else "unloaded",
        "cold_start": live.is_cold(entry.id),
        "max_model_len": files.max_model_len if files else None,
        "vocab_size": files.vocab_size if files else None,
        "max_token_id": files.vocab_size - 1 if files else None,
        "eos_token_ids": files.eos_token_ids if files else None,
        "default_max_tokens": INTEGERS["max_tokens"].default,
        "prices_per_million_tokens": entry.prices or None,
        "chat_style": find_chat_style(files).to_dict() if files else None,
        "capabilities": _make_capabilities(
            files, live.loaded.get(entry.id), list_adapters(entry, principal)
        )
        if files
        else None,
    }


def _make_capabilities(
    files: ModelFiles, forward: str | None, adapters: list[str]
) -> dict[str, object]:
    """Return names as in the contract, section 5.1. `forward` is how a live worker runs the model:
    `c`, `torch` or `cuda`; `general` runs each sequence separately, which is slow. `quantization`
    is the format of quantized weights."""
    return {
        **list_abilities(files),
        **dict.fromkeys(_EVERY_MODEL, True),
        "adapters": adapters,
        "forward": forward,
        "quantization": files.quantization,
    }
