"""Recognises decoders whose forward the C library computes as a whole, by their structure.

What a module is called says what it should be; that it is so is checked like everything else at
load, by comparing logits with the model's own.
"""

import ctypes
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from workers.engine.cpu.library import load_library
from workers.engine.cpu.linear import (
    Int8Linear,
    LinearStruct,
    QuantizedRows,
    QuantizedStruct,
    TiledLinear,
)
from workers.engine.model.attention import AttentionMetadata
from workers.engine.model.kv_cache import AttentionRule, CacheProbe, KVCache

_ROW_BLOCK = 32
_MAX_QUERIES = 16
_MAX_HEAD_DIM = 256
_HEAD_MULTIPLE = 64
_BLOCK_MULTIPLE = 16
_STATIC_ROTARY = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary positions whose angles depend on the position alone."""

_LAYER = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}
_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
_HEAD_NORMS = {"q_norm", "k_norm"}
_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}

_UNLIMITED = 2**62


class _LayerStruct(ctypes.Structure):
    """``Layer`` of decoder.c."""

    _fields_ = [
        *((name, LinearStruct) for name in ("query", "key", "value", "output")),
        *((name, LinearStruct) for name in ("gate", "up", "down")),
        *((name, ctypes.c_void_p) for name in ("attention_norm", "mlp_norm")),
        *((name, ctypes.c_void_p) for name in ("query_norm", "key_norm", "keys", "values")),
        ("window", ctypes.c_int64),
        ("scale", ctypes.c_float),
    ]


class _ModelStruct(ctypes.Structure):
    """``Model`` of decoder.c."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("hidden", "heads", "kv_heads", "head_dim")),
        *((name, ctypes.c_int32) for name in ("intermediate", "num_layers", "block_size")),
        ("epsilon", ctypes.c_float),
        ("num_blocks", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("embedding", "cosine", "sine", "norm")),
        ("head", LinearStruct),
        ("layers", ctypes.POINTER(_LayerStruct)),
    ]


class _BatchStruct(ctypes.Structure):
    """``Batch`` of decoder.c."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("rows", "num_logits", "num_threads")),
        *((name, ctypes.c_void_p) for name in ("ids", "positions", "slots", "owners", "tables")),
        ("table_width", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("logits_rows", "logits", "residual", "normed")),
        *((name, ctypes.c_void_p) for name in ("projected", "queries", "activated")),
        ("quantized", QuantizedStruct),
        *((name, ctypes.c_void_p) for name in ("scores", "weights")),
        ("max_tokens", ctypes.c_int64),
    ]


class NativeDecoder:
    """One forward of a recognised model over the paged cache.

    It reads the packed weights of the model's own layers, so it costs no memory beside tables.
    The logits are valid until the next forward.
    """

    def __init__(self, model: Any, rules: dict[nn.Module, AttentionRule], max_len: int) -> None:
        """``rules`` are those of the attention layers, in the order in which they ran."""
        self._library: Any = load_library()
        self._decoder = model.get_decoder()
        self._head: TiledLinear = model.get_output_embeddings()
        self._rules = rules
        self._max_len = max_len
        # Not a power of two, whose multiples would share the same few lines of the cache.
        self._stride = -(-max_len // _BLOCK_MULTIPLE) * _BLOCK_MULTIPLE + 5 * _BLOCK_MULTIPLE
        self._kept: list[Tensor] = []  # what the structures point to
        self._scratch: dict[str, Tensor] = {}
        self._quantized = QuantizedRows(0, 0)
        self._cache: KVCache | None = None
        first = self._decoder.layers[0]
        self._head_dim = first.self_attn.head_dim
        self._heads = first.self_attn.q_proj.out_features // self._head_dim
        self._kv_heads = first.self_attn.k_proj.out_features // self._head_dim
        self._intermediate = first.mlp.gate_proj.out_features
        self._cosine, self._sine = self._angles()
        self._model = self._model_struct()

    @classmethod
    def recognise(cls, model: Any, probe: CacheProbe, max_len: int) -> Self | None:
        """None if the library is not there, or the model is not of the form that it computes."""
        if load_library() is None or model.dtype != torch.bfloat16:
            return None
        is_one = _is_decoder(model, probe.rules)
        return cls(model, probe.rules, max_len) if is_one else None

    def takes(self, metadata: AttentionMetadata) -> bool:
        """Whether this batch may bypass the model's modules."""
        return (
            isinstance(metadata.cache, KVCache)
            and metadata.cache.block_size % _BLOCK_MULTIPLE == 0
            and not metadata.through_modules
        )

    def __call__(
        self, ids: Tensor, positions: Tensor, metadata: AttentionMetadata, logits_rows: Tensor
    ) -> Tensor:
        """As ``PagedModel``; float32 logits [len(logits_rows), vocabulary]."""
        assert isinstance(metadata.cache, KVCache)
        if metadata.cache is not self._cache:
            self._bind(metadata.cache)
        rows, num_logits = len(ids), len(logits_rows)
        padded = -(-max(rows, num_logits) // _ROW_BLOCK) * _ROW_BLOCK
        threads = torch.get_num_threads()
        heads = self._heads + 2 * self._kv_heads
        logits = self._buffer("logits", num_logits, self._head.out_features)
        given = (ids, positions, metadata.slots, metadata.owners, metadata.tables, logits_rows)
        ids, positions, slots, owners, tables, logits_rows = (x.contiguous() for x in given)
        batch = _BatchStruct(
            rows, num_logits, threads,
            *(x.data_ptr() for x in (ids, positions, slots, owners, tables)),
            tables.shape[1], logits_rows.data_ptr(), logits.data_ptr(),
            self._buffer("residual", padded, self._model.hidden).data_ptr(),
            self._buffer("normed", padded, self._model.hidden).data_ptr(),
            self._buffer("projected", padded, heads * self._head_dim).data_ptr(),
            self._buffer("queries", padded, self._heads * self._head_dim).data_ptr(),
            self._buffer("activated", padded, self._intermediate).data_ptr(),
            self._quantized_rows(padded),
            self._buffer("scores", threads * _MAX_QUERIES, self._stride).data_ptr(),
            self._buffer("weights", threads * _MAX_QUERIES, self._stride).data_ptr(),
            self._stride,
        )  # fmt: skip
        self._library.quire_forward(ctypes.byref(self._model), ctypes.byref(batch))
        return logits

    def _buffer(self, name: str, rows: int, columns: int) -> Tensor:
        """Memory that is kept from step to step, as wide as the largest step so far needed."""
        size = rows * columns
        if name not in self._scratch or self._scratch[name].numel() < size:
            dtype = (
                torch.bfloat16
                if name in ("normed", "queries", "activated", "weights")
                else torch.float32
            )
            self._scratch[name] = torch.zeros(size, dtype=dtype)
        return self._scratch[name][:size].view(rows, columns)

    def _quantized_rows(self, rows: int) -> QuantizedStruct:
        if not isinstance(self._head, Int8Linear):
            return QuantizedStruct()
        if self._quantized.rows < rows:
            widest = max(self._model.hidden, self._heads * self._head_dim, self._intermediate)
            self._quantized = QuantizedRows(rows, widest)
        return self._quantized.struct

    def _model_struct(self) -> _ModelStruct:
        layers = self._decoder.layers
        structs = (_LayerStruct * len(layers))(
            *(
                self._layer_struct(layer, rule)
                for layer, rule in zip(layers, self._rules.values(), strict=True)
            )
        )
        return _ModelStruct(
            hidden=self._decoder.embed_tokens.weight.shape[1],
            heads=self._heads,
            kv_heads=self._kv_heads,
            head_dim=self._head_dim,
            intermediate=self._intermediate,
            num_layers=len(layers),
            epsilon=self._decoder.norm.variance_epsilon,
            embedding=self._decoder.embed_tokens.weight.data_ptr(),
            cosine=self._cosine.data_ptr(),
            sine=self._sine.data_ptr(),
            norm=self._single(self._decoder.norm.weight),
            head=self._head.struct,
            layers=structs,
        )

    def _layer_struct(self, layer: Any, rule: AttentionRule) -> _LayerStruct:
        attention, mlp = layer.self_attn, layer.mlp
        has_norms = hasattr(attention, "q_norm")
        return _LayerStruct(
            query=attention.q_proj.struct,
            key=attention.k_proj.struct,
            value=attention.v_proj.struct,
            output=attention.o_proj.struct,
            gate=mlp.gate_proj.struct,
            up=mlp.up_proj.struct,
            down=mlp.down_proj.struct,
            attention_norm=self._single(layer.input_layernorm.weight),
            mlp_norm=self._single(layer.post_attention_layernorm.weight),
            query_norm=self._single(attention.q_norm.weight) if has_norms else None,
            key_norm=self._single(attention.k_norm.weight) if has_norms else None,
            window=rule.window or _UNLIMITED,
            scale=rule.scale,
        )

    def _single(self, weight: Tensor) -> int:
        """The address of a float32 copy."""
        self._kept.append(weight.detach().float().contiguous())
        return self._kept[-1].data_ptr()

    @torch.inference_mode()
    def _angles(self) -> tuple[Tensor, Tensor]:
        """Cosines and sines [positions, head_dim], as the model's own module says."""
        positions = torch.arange(self._max_len)[None]
        cosine, sine = self._decoder.rotary_emb(torch.empty(0), positions)
        return cosine[0].contiguous(), sine[0].contiguous()

    def _bind(self, cache: KVCache) -> None:
        """Point the layers at the pages of ``cache``."""
        self._cache = cache
        self._model.num_blocks, self._model.block_size = cache.num_blocks, cache.block_size
        for i, module in enumerate(self._rules):
            pages = cache.layers[module]
            self._model.layers[i].keys = pages.key.data_ptr()
            self._model.layers[i].values = pages.value.data_ptr()


def _is_decoder(model: Any, rules: dict[nn.Module, AttentionRule]) -> bool:
    decoder = model.get_decoder()
    parts = ("embed_tokens", "layers", "norm", "rotary_emb")
    if {name for name, _ in decoder.named_children()} != set(parts):
        return False
    embedding, layers, norm, rotary = (getattr(decoder, part) for part in parts)
    attentions = [getattr(layer, "self_attn", None) for layer in layers]
    return (
        type(embedding) is nn.Embedding
        and embedding.weight.shape[1] % _ROW_BLOCK == 0
        and isinstance(model.get_output_embeddings(), TiledLinear)
        and getattr(rotary, "rope_type", None) in _STATIC_ROTARY
        and _is_norm(norm)
        and attentions == list(rules)
        and all(_is_layer(layer, norm.variance_epsilon) for layer in layers)
        and all(rule.softcap is None for rule in rules.values())
        and len({_shape(layer) for layer in layers}) == 1
    )


def _is_layer(layer: Any, epsilon: float) -> bool:
    if {name for name, _ in layer.named_children()} != _LAYER:
        return False
    attention, mlp = layer.self_attn, layer.mlp
    children = {name for name, _ in attention.named_children()}
    if children not in (_ATTENTION, _ATTENTION | _HEAD_NORMS):
        return False
    if {name for name, _ in mlp.named_children()} != _MLP or not _is_silu(mlp.act_fn):
        return False
    norms = [layer.input_layernorm, layer.post_attention_layernorm]
    norms += [getattr(attention, name) for name in children & _HEAD_NORMS]
    linears = [getattr(attention, name) for name in _ATTENTION]
    linears += [mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    dim = getattr(attention, "head_dim", 0)
    return (
        all(isinstance(linear, TiledLinear) for linear in linears)
        and all(_is_norm(norm) and norm.variance_epsilon == epsilon for norm in norms)
        and 0 < dim <= _MAX_HEAD_DIM
        and dim % _HEAD_MULTIPLE == 0
        and attention.q_proj.out_features // attention.k_proj.out_features <= _MAX_QUERIES
    )


def _is_silu(module: Any) -> bool:
    x = torch.linspace(-9, 9, 64)
    return torch.equal(module(x), silu(x))


def _is_norm(module: Any) -> bool:
    return hasattr(module, "variance_epsilon") and [n for n, _ in module.named_parameters()] == [
        "weight"
    ]


def _shape(layer: Any) -> tuple[int, ...]:
    attention, mlp = layer.self_attn, layer.mlp
    linears = (attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj)
    return (attention.head_dim, *(linear.out_features for linear in linears))
