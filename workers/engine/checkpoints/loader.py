"""Loads a folder or hub name as a model that runs over the paged cache, or else the general way.

Nothing here knows an architecture. A first forward shows which modules attend, and with what
shapes; a comparison with the model's own attention shows whether the result is right. A model that
does not pass runs as in transformers, one sequence at a time.
"""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from workers.engine.backends.base.cache_probe import CacheProbe
from workers.engine.backends.base.loaded_model import LoadedModel, MakeRunner
from workers.engine.backends.base.lora import Adapters
from workers.engine.backends.base.paged import PagedModel, StatefulModules
from workers.engine.backends.base.recorder import Recorder, finding_routed_modules
from workers.engine.backends.compressed.compressors import wrap_compressors
from workers.engine.backends.cpu.decoder import NativeDecoder
from workers.engine.backends.cpu.kv_cache import pack_keys
from workers.engine.backends.cpu.layers.library import why_no_kernels
from workers.engine.backends.cpu.layers.packed_linear import pack_linears
from workers.engine.backends.cuda.fusion import Fusion
from workers.engine.backends.device import choose_backend
from workers.engine.backends.fallback.model import TRIED_TOKENS, FallbackModel, use_own_attention
from workers.engine.backends.fallback.runner import FallbackRunner
from workers.engine.backends.parallel.group import Ranks
from workers.engine.backends.sparse.indexers import use_pages
from workers.engine.checkpoints.context import count_positions, resolve_context
from workers.engine.checkpoints.parity.own_attention import OwnAttention, passage
from workers.engine.checkpoints.parity.parity_check import ParityCheck
from workers.engine.checkpoints.parity.probe import PROBED_TOKENS, find_states, probe
from workers.engine.checkpoints.reading.checkpoint import read_model
from workers.engine.checkpoints.reading.model_folder import read_tokenizer
from workers.engine.checkpoints.rotary import keep_frequencies
from workers.engine.config import EngineConfig
from workers.engine.core.attention_backend import AttentionBackend
from workers.engine.core.layer_shape import LayerShape
from workers.engine.core.runner import Draw, Runner
from workers.engine.exceptions import UnsupportedModel
from workers.engine.text.detokenizer import Vocabulary

logger = logging.getLogger(__name__)


class _Forward(NamedTuple):
    make_runner: MakeRunner
    name: str
    paged: PagedModel | None
    vocab_size: int
    adapters: Adapters
    routed: list[nn.Module]
    shapes: dict[nn.Module, LayerShape]
    max_positions: int


def load_model(path: str | Path, config: EngineConfig, ranks: Ranks | None = None) -> LoadedModel:
    """Load weights, tokenizer and adapters. With ``ranks``, each loads its part of the weights.
    Raises UnsupportedModel and UnsupportedAdapter."""
    device = torch.device(config.device)
    backend = choose_backend(device)

    def read() -> Any:
        packed = config.dtype if config.is_rounded else None
        return read_model(path, _weights_dtype(config), backend.attention, device, packed, ranks)

    model = read()
    if ranks is not None:
        ranks.meet()  # reading may take one of them much longer than another
    return wrap_model(model, read_tokenizer(path), backend, config, read, ranks)


def _weights_dtype(config: EngineConfig) -> torch.dtype | str:
    """Return the dtype that weights are read as. Raises UnsupportedModel."""
    if config.dtype == "auto":
        return config.dtype
    if config.is_rounded and (reason := why_no_kernels()) is not None:
        raise UnsupportedModel(f"dtype {config.dtype} needs C kernels: {reason}")
    named = "bfloat16" if config.is_rounded else config.dtype
    dtype: torch.dtype = getattr(torch, named)
    return dtype


def wrap_model(
    model: Any,
    tokenizer: Any,
    backend: AttentionBackend,
    config: EngineConfig,
    read_again: Callable[[], Any] | None = None,
    ranks: Ranks | None = None,
) -> LoadedModel:
    """Prepare a causal model of transformers, made with the backend's attention, to run on the
    device of ``config``. Raises UnsupportedModel and UnsupportedAdapter.

    ``read_again`` returns a fresh copy of the model: the general way cannot use linear layers that
    were packed for the paged forwards.
    """
    if not tokenizer.is_fast:
        raise UnsupportedModel("The model has no tokenizer.json")
    max_model_len = resolve_context(model.config.get_text_config(), config)
    eos_token_ids = _eos_token_ids(model, tokenizer) | frozenset(config.stop_token_ids)
    if not eos_token_ids:
        raise UnsupportedModel(
            "The model's files name no end token: set stop_token_ids in models.toml to the ids of "
            "those that end a text"
        )
    device = torch.device(config.device)
    dtype = model.dtype
    model = model.to(device).eval()
    keep_frequencies(model, max_model_len)
    packed = 0
    try:
        parity = ParityCheck(model, backend, config.block_size, max_model_len)
        if device.type == "cpu" and ranks is None:
            packed = pack_linears(model, config.dtype, parity.direct_weights)
        text = passage(tokenizer, max_model_len) if config.is_rounded else []
        forward = _load_paged(model, parity, backend, config, ranks, text)
    except UnsupportedModel as reason:
        if config.is_rounded or (packed and read_again is None) or ranks is not None:
            raise
        logger.warning("each sequence runs by itself, as in generate, since: %s", reason)
        if packed and read_again is not None:
            model = read_again().to(device).eval()
            keep_frequencies(model, max_model_len)
        forward = _general(model, max_model_len, config)
    return LoadedModel(
        make_runner=forward.make_runner,
        forward=forward.name,
        paged=forward.paged,
        vocabulary=Vocabulary(tokenizer.backend_tokenizer, max(forward.vocab_size, len(tokenizer))),
        vocab_size=forward.vocab_size,
        eos_token_ids=eos_token_ids,
        max_model_len=max_model_len,
        max_positions=forward.max_positions,
        layer_shapes=forward.shapes,
        dtype=dtype,
        device=device,
        backend=backend,
        adapters=forward.adapters,
        recorder=Recorder(
            model.get_output_embeddings(),
            forward.routed,
            forward.paged is not None and forward.paged.selects_rows,
        ),
        ranks=ranks,
    )


def _load_paged(
    model: Any,
    parity: ParityCheck,
    backend: AttentionBackend,
    config: EngineConfig,
    ranks: Ranks | None,
    text: list[int],
) -> _Forward:
    """Return the model over pages, and in C where the C forward supports it. ``text`` is for
    :class:`OwnAttention`. Raises UnsupportedModel."""
    max_len = parity.max_len
    own = OwnAttention(model, backend, config, ranks, text)
    use_pages(model)
    wrap_compressors(model)
    paged = PagedModel(model)
    adapters = Adapters.load(model, config.adapters)
    if parity.continues is not None:
        if config.tensor_parallel_size > 1:
            raise UnsupportedModel(
                f"{type(model).__name__} keeps states, which cannot be split among processes"
            )
        paged.mixers = _mixers(paged, parity.continues, backend, config, adapters)
    with adapters.checking(PROBED_TOKENS), finding_routed_modules(model) as routed:
        probed = probe(paged, backend, config.block_size, model.device)
    paged.fusion = _fusion(model, backend, config, ranks)
    shapes = probed.shapes
    _compare(own, paged, shapes, backend, ranks)
    c_may_run = backend.has_native_forward and config.tensor_parallel_size == 1
    if c_may_run and NativeDecoder.takes_blocks(config.block_size):
        positions = count_positions(max_len, shapes.values(), model.dtype, config)
        paged.native = _native(paged, own, parity, probed, positions, config)
        if paged.native is not None:
            max_len, shapes = positions, pack_keys(shapes)
    if config.is_rounded and paged.native is None:
        raise UnsupportedModel(
            f"dtype {config.dtype} needs the C forward, which cannot compute "
            f"{type(model).__name__}, or not with blocks of {config.block_size} tokens (it takes "
            'multiples of 16): set dtype = "bfloat16"'
        )
    name = backend.name if paged.native is None else "c"
    make_runner = partial(backend.make_runner, paged)
    return _Forward(make_runner, name, paged, own.vocab_size, adapters, routed, shapes, max_len)


def _mixers(
    paged: PagedModel,
    continues: bool,
    backend: AttentionBackend,
    config: EngineConfig,
    adapters: Adapters,
) -> StatefulModules:
    """Return the model's modules that keep states, made to run on flat batches. Raises
    UnsupportedModel."""
    mixers = find_states(paged, backend, config.block_size, torch.device(config.device))
    if mixers is None:
        raise UnsupportedModel(
            f"{type(paged.model).__name__} shows no states, but its miniature does"
        )
    mixers.continues = continues
    mixers.wrap(adapters)
    return mixers


def _fusion(
    model: Any, backend: AttentionBackend, config: EngineConfig, ranks: Ranks | None
) -> Fusion | None:
    """Return the fusion of the model's operations, unless it fails here or on another rank."""
    fusion = None
    if backend.fuses and not config.enforce_eager:
        try:
            fusion = Fusion(model)
        except Exception as failure:  # noqa: BLE001 - the modules may be anything
            logger.warning("operations are not fused, since %r", failure)
    if ranks is not None and not ranks.smallest(fusion is not None) and fusion is not None:
        fusion.remove()
        logger.warning("operations are not fused, since another rank does not fuse them")
        return None
    return fusion


def _compare(
    own: OwnAttention,
    paged: PagedModel,
    shapes: dict[nn.Module, LayerShape],
    backend: AttentionBackend,
    ranks: Ranks | None,
) -> None:
    """Check the forward over pages against the model's own modules and attention; if the check
    fails, try without fusion, then simpler kernels, on all ranks. Raises UnsupportedModel."""
    while True:
        try:
            own.compare(paged, shapes)
        except UnsupportedModel as error:
            reason = error
        else:
            return
        if paged.fusion is not None:
            paged.fusion.remove()
            paged.fusion = None
            logger.warning("operations are not fused, since %s", reason)
            continue
        # A rank whose GPU supports fewer kernels has none left before the others do.
        simplified = backend.simplify()
        if not (simplified if ranks is None else ranks.largest(simplified)):
            raise reason
        logger.warning("attention falls back to a simpler kernel, since %s", reason)


def _native(
    paged: PagedModel,
    own: OwnAttention,
    parity: ParityCheck,
    probed: CacheProbe,
    max_len: int,
    config: EngineConfig,
) -> NativeDecoder | None:
    """Return the C forward, if it supports the model and computes the same logits. Raises
    UnsupportedModel if it does not compute the same, and nothing else may take its place."""
    stateful = () if paged.mixers is None else paged.mixers.shapes
    native = NativeDecoder.recognise(paged.model, probed, stateful, max_len)
    if native is None:
        return None
    in_c = PagedModel(paged.model)
    in_c.native, in_c.mixers = native, paged.mixers
    try:
        parity.check_native()
        own.compare(in_c, pack_keys(probed.shapes))
    except UnsupportedModel as reason:
        if config.is_rounded:
            raise UnsupportedModel(
                f'dtype {config.dtype} needs the C forward, but {reason}: set dtype = "bfloat16"'
            ) from reason
        logger.info("the C forward is not used: %s", reason)
        return None
    return native


def _general(model: Any, max_len: int, config: EngineConfig) -> _Forward:
    """Return the model as ``generate`` runs it. Raises UnsupportedModel."""
    use_own_attention(model)
    adapters = Adapters.load(model, config.adapters)
    general = FallbackModel(model, adapters, max_len)
    with adapters.checking(TRIED_TOKENS), finding_routed_modules(model) as routed:
        vocab_size = general.try_out()
    general.measure()

    def make_runner(loaded: LoadedModel, config: EngineConfig, _draw: Draw) -> Runner:
        return FallbackRunner(general, loaded, config)

    return _Forward(make_runner, "general", None, vocab_size, adapters, routed, {}, max_len)


def _eos_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return all the ids that end a text: generation config, model config and tokenizer may
    differ."""
    eos: set[int] = set()
    text_config = model.config.get_text_config()
    for source in (model.generation_config, text_config, tokenizer):
        ids = getattr(source, "eos_token_id", None)
        eos.update([ids] if isinstance(ids, int) else ids or [])
    return frozenset(eos)
