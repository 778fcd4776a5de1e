"""A model folder or hub name to a model that runs over the paged cache, or a clear refusal.

Nothing here knows an architecture. Which modules attend, and to what shapes, is learnt from a
first forward; whether the result is right, from a comparison with the model's own attention.
"""

import inspect
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from workers.engine.config import EngineConfig
from workers.engine.cpu.decoder import NativeDecoder
from workers.engine.cpu.library import why_no_int8
from workers.engine.cpu.packed_linear import pack_linears
from workers.engine.exceptions import UnsupportedModel
from workers.engine.model.attention import AttentionMetadata
from workers.engine.model.attention_backend import (
    AttentionBackend,
    CpuBackend,
    Metadata,
    backend_for,
)
from workers.engine.model.kv_cache import CacheProbe, LayerShape
from workers.engine.model.lora import Adapters
from workers.engine.model.recorder import Recorder, finding_routed_modules
from workers.engine.text.detokenizer import Vocabulary

logger = logging.getLogger(__name__)

_PROBED_TOKENS = 2
_CHECKED_TOKENS = 24
_CHECKED_PIECES = (11, 12, 1)
"""The check's tokens as a first chunk, a chunk that follows, and one decoded token."""

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
"""Relative error of logits that rounding alone explains; a wrong mask is off by far more."""

_TOLERANCE_INT8 = 0.2
"""Activations that differ by their last bit may be rounded to other bytes: 7 % of random models."""


class PagedModel:
    """A causal language model as the engine calls it: on flat batches, over the paged cache.

    ``native`` computes batches that nobody watches without running the model's modules.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.native: NativeDecoder | None = None
        # Most models can leave rows out of their output layer, the largest product of a step.
        self._selects_rows = "logits_to_keep" in inspect.signature(model.forward).parameters

    def __call__(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        metadata: Metadata,
        logits_rows: Tensor,
    ) -> Tensor:
        """One forward over a flat batch [tokens]; logits [len(logits_rows), vocabulary], valid
        until the next."""
        if self.native is not None:
            assert isinstance(metadata, AttentionMetadata)
            if self.native.takes(metadata):
                return self.native(input_ids, position_ids, metadata, logits_rows)
        options: dict[str, Any] = {"attention_metadata": metadata, "use_cache": False}
        if self._selects_rows:
            options["logits_to_keep"] = logits_rows
        output = self.model(input_ids=input_ids[None], position_ids=position_ids[None], **options)
        logits: Tensor = output.logits[0]
        return logits if self._selects_rows else logits[logits_rows]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run, with what the engine needs to know about it."""

    model: PagedModel
    vocabulary: Vocabulary
    vocab_size: int
    eos_token_ids: frozenset[int]
    max_model_len: int
    layer_shapes: dict[nn.Module, LayerShape]
    dtype: torch.dtype
    device: torch.device
    backend: AttentionBackend
    adapters: Adapters
    recorder: Recorder


def load_model(path: str | Path, config: EngineConfig) -> LoadedModel:
    """Load weights, tokenizer and adapters. Raises UnsupportedModel and UnsupportedAdapter."""
    model_config = AutoConfig.from_pretrained(path)
    dtype = _weights_dtype(config)
    backend = backend_for(torch.device(config.device))
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, attn_implementation=backend.attention
        )
    except (ValueError, KeyError) as error:  # an architecture without the attention interface
        raise UnsupportedModel(
            f"{model_config.model_type} does not take an attention function: {error}"
        ) from error
    return wrap_model(model, AutoTokenizer.from_pretrained(path), backend, config)


def _weights_dtype(config: EngineConfig) -> torch.dtype | str:
    """What weights are read as. Raises UnsupportedModel."""
    if config.dtype == "auto":
        return config.dtype
    if config.dtype == "int8" and (reason := why_no_int8()) is not None:
        raise UnsupportedModel(f"dtype int8 is not to be had: {reason}")
    named = "bfloat16" if config.dtype == "int8" else config.dtype
    dtype: torch.dtype = getattr(torch, named)
    return dtype


def wrap_model(
    model: Any, tokenizer: Any, backend: AttentionBackend, config: EngineConfig
) -> LoadedModel:
    """Prepare a causal model of transformers, made with the backend's attention, to run on the
    device of ``config``. Raises UnsupportedModel and UnsupportedAdapter."""
    if not tokenizer.is_fast:
        raise UnsupportedModel("The model has no tokenizer.json")
    max_model_len = _max_model_len(model.config.get_text_config(), config)
    eos_token_ids = _eos_token_ids(model, tokenizer) | frozenset(config.stop_token_ids)
    if not eos_token_ids:
        raise UnsupportedModel("The model names no end-of-sequence token")
    device = torch.device(config.device)
    model = model.to(device).eval()
    if device.type == "cpu":
        pack_linears(model, quantize=config.dtype == "int8")
    vocab_size = model.get_output_embeddings().out_features
    adapters = Adapters.load(model, config.adapters)
    paged = PagedModel(model)
    with adapters.checking(_PROBED_TOKENS), finding_routed_modules(model) as routed:
        probe = _probe(paged, backend, config.block_size, device)
    loaded = LoadedModel(
        model=paged,
        vocabulary=Vocabulary(tokenizer.backend_tokenizer, max(vocab_size, len(tokenizer))),
        vocab_size=vocab_size,
        eos_token_ids=eos_token_ids,
        max_model_len=max_model_len,
        layer_shapes=probe.shapes,
        dtype=model.dtype,
        device=device,
        backend=backend,
        adapters=adapters,
        recorder=Recorder(model.get_output_embeddings(), routed),
    )
    expected = _own_logits(loaded)
    _check(loaded, expected, config)
    if isinstance(backend, CpuBackend):
        paged.native = NativeDecoder.recognise(model, probe, max_model_len)
    if paged.native is not None:
        _check_native(loaded, expected, config)
    if config.dtype == "int8" and paged.native is None:
        raise UnsupportedModel(
            f"dtype int8 is not to be had: {type(model).__name__} is no decoder of the form that "
            "the C kernels compute"
        )
    return loaded


def _max_model_len(text_config: Any, config: EngineConfig) -> int:
    limit: int | None = getattr(text_config, "max_position_embeddings", None)
    wanted = config.max_model_len or limit
    if wanted is None:
        raise ValueError("The model states no context length: set max_model_len")
    if limit is not None and wanted > limit:
        raise ValueError(f"max_model_len {wanted} exceeds the model's context of {limit}")
    return wanted


def _eos_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """All the ids that end a text: generation config, model config and tokenizer may differ."""
    found: set[int] = set()
    text_config = model.config.get_text_config()
    for source in (model.generation_config, text_config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        found.update([ids] if isinstance(ids, int) else ids or [])
    return frozenset(found)


@torch.inference_mode()
def _probe(
    paged: PagedModel, backend: AttentionBackend, block_size: int, device: torch.device
) -> CacheProbe:
    """Run a few tokens and see what is stored where."""
    probe = CacheProbe()
    tokens = torch.arange(_PROBED_TOKENS, device=device)
    blocks = torch.arange(-(-_PROBED_TOKENS // block_size))[None]
    metadata = backend.piece(probe, 0, _PROBED_TOKENS, blocks, block_size)
    try:
        paged(tokens, tokens, metadata, tokens)
    except (TypeError, KeyError, AttributeError, RuntimeError) as error:
        name = type(paged.model).__name__
        raise UnsupportedModel(f"{name} does not run over pages: {error!r}") from error
    if not probe.shapes:
        raise UnsupportedModel(f"{type(paged.model).__name__} stores no keys and values")
    return probe


def _checked_tokens(loaded: LoadedModel) -> Tensor:
    tokens = torch.arange(_CHECKED_TOKENS, device=loaded.device)
    return (tokens * 7919 + 11) % loaded.vocab_size


@torch.inference_mode()
def _own_logits(loaded: LoadedModel) -> Tensor:
    """What the model says with its own attention."""
    model: Any = loaded.model.model
    model.set_attn_implementation("eager")
    try:
        logits: Tensor = model(input_ids=_checked_tokens(loaded)[None], use_cache=False).logits[0]
    finally:
        model.set_attn_implementation(loaded.backend.attention)
    return logits.float()


def _check(loaded: LoadedModel, expected: Tensor, config: EngineConfig) -> None:
    """Compare with the model's own attention, so that what the pages cannot do is refused here
    and not served as wrong text: positions inside attention, caches shared between layers."""
    actual = _run_in_pieces(loaded, _checked_tokens(loaded), config.block_size)
    tolerance = _TOLERANCE_INT8 if config.dtype == "int8" else _TOLERANCE[loaded.dtype]
    error = ((actual - expected).norm() / expected.norm()).item()
    if not error < tolerance:
        raise UnsupportedModel(
            f"{type(loaded.model.model).__name__} over pages differs from its own attention by "
            f"{error:.1%}"
        )


def _check_native(loaded: LoadedModel, expected: Tensor, config: EngineConfig) -> None:
    """Drop the native forward of a model that is not what its structure looks like."""
    try:
        _check(loaded, expected, config)
    except UnsupportedModel as error:
        logger.info("the C forward is not used: %s", error)
        loaded.model.native = None


@torch.inference_mode()
def _run_in_pieces(loaded: LoadedModel, tokens: Tensor, block_size: int) -> Tensor:
    blocks = torch.arange(1, 2 + len(tokens) // block_size)[None]
    cache = loaded.backend.make_cache(
        loaded.layer_shapes, blocks.shape[1] + 1, block_size, loaded.dtype
    )
    logits, position = [], 0
    for size in _CHECKED_PIECES:
        places = torch.arange(position, position + size, device=loaded.device)
        metadata = loaded.backend.piece(cache, position, size, blocks, block_size)
        rows = torch.arange(size, device=loaded.device)
        part = loaded.model(tokens[places], places, metadata, rows)
        logits.append(part.to(torch.float32, copy=True))
        position += size
    return torch.cat(logits)
