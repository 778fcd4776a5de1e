"""The forward of a recognised decoder, computed by the C library as a whole."""

import ctypes
import logging
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from workers.engine.backends.base.cache_probe import CacheProbe
from workers.engine.backends.cpu.attention import AttentionMetadata
from workers.engine.backends.cpu.kv_cache import KVCache
from workers.engine.backends.cpu.layers.library import load_library
from workers.engine.backends.cpu.layers.linear import LinearStruct, PreparedRows, PreparedStruct
from workers.engine.backends.cpu.recognition.decoders import (
    ROW_BLOCK,
    DecoderParts,
    LayerParts,
    read_decoder,
)
from workers.engine.backends.cpu.recognition.heads import LatentParts
from workers.engine.backends.cpu.recognition.mlps import Columns, ExpertsParts, MlpParts
from workers.engine.backends.cpu.recognition.parts import NormParts, Unrecognised
from workers.engine.backends.cpu.recognition.rotary import Pairing
from workers.engine.backends.cpu.structs import (
    BatchStruct,
    ExpertsStruct,
    LatentsStruct,
    LayerStruct,
    MlpStruct,
    ModelStruct,
    NormStruct,
)

logger = logging.getLogger(__name__)

_BLOCK_MULTIPLE = 16
_IN_BFLOAT16 = {"normed", "queries", "attended", "activated", "gathered"}
_UNLIMITED = 2**62


@dataclass(frozen=True, slots=True)
class _Room:
    """The scratch sizes of MLPs and experts: the widest over all layers."""

    dense: int
    mixed: int
    experts: int
    chosen: int

    @classmethod
    def measure(cls, parts: DecoderParts) -> Self:
        mixtures = [x.mlp for x in parts.layers if isinstance(x.mlp, ExpertsParts)]
        mlps = [x.mlp for x in parts.layers if isinstance(x.mlp, MlpParts)]
        mlps += [x.shared for x in mixtures if x.shared is not None]
        return cls(
            dense=max((x.up.size for x in mlps), default=0),
            mixed=max((x.mlps[0].up.size for x in mixtures), default=0),
            experts=max((len(x.mlps) for x in mixtures), default=0),
            chosen=max((x.router.chosen for x in mixtures), default=1),
        )

    @property
    def widest(self) -> int:
        return max(self.dense, self.mixed)

    def slots(self, rows: int) -> int:
        """Slots for each row and each of its experts, and the padding that is read after them."""
        return rows * self.chosen + (ROW_BLOCK if self.experts else 0)

    def count_activated(self, rows: int) -> int:
        return max(rows * self.dense, self.slots(rows) * self.mixed)


class NativeDecoder:
    """One forward of a recognised model over the paged cache.

    It reads the packed weights of the model's own layers, so it costs no memory beside tables.
    The logits are valid until the next forward.
    """

    def __init__(self, parts: DecoderParts) -> None:
        self._library: Any = load_library()
        self._parts = parts
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        """By id, a tensor and its contiguous form, which the structures point to."""
        self._scratch: dict[str, Tensor] = {}
        self._prepares_rows = parts.head.prepares_rows
        self._prepared = PreparedRows(0, 0)
        self._cache: KVCache | None = None
        self._heads = parts.layers[0].attention.heads
        self._room = _Room.measure(parts)
        self._model = self._model_struct()
        self._attention_bytes = self._count_attention_bytes()

    @classmethod
    def recognise(cls, model: Any, probe: CacheProbe, max_len: int) -> Self | None:
        """None if there is no library, or if the library does not support the model's form."""
        if load_library() is None or model.dtype != torch.bfloat16:
            return None
        try:
            return cls(read_decoder(model, probe, max_len))
        except Unrecognised as reason:
            logger.info("%s is not computed in C: %s", type(model).__name__, reason)
            return None

    @property
    def has_experts(self) -> bool:
        return self._room.experts > 0

    @staticmethod
    def takes_blocks(block_size: int) -> bool:
        """Return whether it can read a cache with blocks of this many tokens."""
        return block_size % _BLOCK_MULTIPLE == 0

    def takes(self, metadata: AttentionMetadata) -> bool:
        """Return whether this batch may bypass the model's modules."""
        return (
            isinstance(metadata.cache, KVCache)
            and self.takes_blocks(metadata.cache.block_size)
            and not metadata.run_modules
        )

    def __call__(
        self, ids: Tensor, positions: Tensor, metadata: AttentionMetadata, logits_rows: Tensor
    ) -> Tensor:
        """As ``PagedModel``; float32 logits [len(logits_rows), vocabulary]."""
        assert isinstance(metadata.cache, KVCache)
        if metadata.cache is not self._cache:
            self._bind(metadata.cache)
        rows, num_logits = len(ids), len(logits_rows)
        padded = -(-max(rows, num_logits) // ROW_BLOCK) * ROW_BLOCK
        threads = torch.get_num_threads()
        heads, hidden = self._heads, self._model.hidden
        queries = self._buffer("queries", padded, heads.heads * heads.dim)
        attended = (
            queries
            if heads.value_dim == heads.dim
            else self._buffer("attended", padded, heads.heads * heads.value_dim)
        )
        logits = self._buffer("logits", num_logits, self._parts.head.out_features)
        given = (ids, positions, metadata.slots, metadata.owners, metadata.tables, logits_rows)
        ids, positions, slots, owners, tables, logits_rows = (x.contiguous() for x in given)
        batch = BatchStruct(
            rows,
            num_logits,
            threads,
            *(x.data_ptr() for x in (ids, positions, slots, owners, tables)),
            tables.shape[1],
            logits_rows.data_ptr(),
            logits.data_ptr(),
            self._buffer("residual", padded, hidden).data_ptr(),
            self._buffer("branch", padded, hidden).data_ptr(),
            self._buffer("normed", padded, max(hidden, heads.widest_latent)).data_ptr(),
            self._buffer("projected", padded, heads.width).data_ptr(),
            queries.data_ptr(),
            attended.data_ptr(),
            self._buffer("activated", 1, self._room.count_activated(padded)).data_ptr(),
            self._prepare_rows(padded),
            *self._experts_buffers(padded),
            self._buffer("attention", threads, self._attention_bytes // 4).data_ptr(),
        )
        self._library.quire_forward(ctypes.byref(self._model), ctypes.byref(batch))
        return logits

    def _count_attention_bytes(self) -> int:
        """Return the scratch of attention for each thread."""
        return int(self._library.quire_attention_room(ctypes.byref(self._model)))

    def _buffer(self, name: str, rows: int, columns: int) -> Tensor:
        """Memory that is kept from step to step, as large as the largest step so far required."""
        size = rows * columns
        if name not in self._scratch or self._scratch[name].numel() < size:
            dtype = torch.bfloat16 if name in _IN_BFLOAT16 else torch.float32
            self._scratch[name] = torch.zeros(size, dtype=dtype)
        return self._scratch[name][:size].view(rows, columns)

    def _prepare_rows(self, rows: int) -> PreparedStruct:
        if not self._prepares_rows:
            return PreparedStruct()
        rows = self._room.slots(rows)
        if self._prepared.rows < rows:
            heads = self._heads
            attended = heads.heads * heads.value_dim
            widest = (self._model.hidden, heads.widest_latent, attended, self._room.widest)
            self._prepared = PreparedRows(rows, max(widest))
        return self._prepared.struct

    def _experts_buffers(self, rows: int) -> list[int | None]:
        """Return the scratch of experts: the fields from ``routing`` to ``gathered``."""
        room = self._room
        if not room.experts:
            return [None] * 7
        slots = room.slots(rows)
        sizes = {
            "routing": (rows, room.experts),
            "chosen": (slots, 1),
            "expert_weights": (slots, 1),
            "expert_starts": (room.experts + 2, 1),
            "routes": (slots, 2),
            "shared_routes": (rows, 2),
            "gathered": (slots, self._model.hidden),
        }
        return [self._buffer(name, *size).data_ptr() for name, size in sizes.items()]

    def _model_struct(self) -> ModelStruct:
        parts, heads = self._parts, self._heads
        first = parts.layers[0]
        query_norm, key_norm = first.attention.norms
        structs = (LayerStruct * len(parts.layers))(*map(self._layer_struct, parts.layers))
        return ModelStruct(
            hidden=parts.embedding.shape[1],
            heads=heads.heads,
            kv_heads=heads.kv_heads,
            head_dim=heads.dim,
            value_dim=heads.value_dim,
            num_layers=len(parts.layers),
            width=heads.width,
            query_step=heads.query_step,
            kv_step=heads.kv_step,
            key_begin=heads.key_begin,
            value_begin=heads.value_begin,
            latent_begin=heads.latent_begin,
            query_latent_begin=heads.query_latent_begin,
            query_span=query_norm[1] if query_norm else 0,
            key_span=key_norm[1] if key_norm else 0,
            rotary_dim=first.rotation.dim if first.rotation else 0,
            pairing=first.rotation.pairing if first.rotation else Pairing.HALVES,
            parallel=first.parallel,
            embedding_scale=parts.embedding_scale,
            residual_scale=parts.residual_scale,
            logits_scale=parts.logits_scale,
            logits_softcap=parts.logits_softcap,
            embedding=parts.embedding.data_ptr(),
            position_embedding=self._address(parts.position_embedding),
            norm=self._norm_struct(parts.norm),
            head=parts.head.struct,
            layers=structs,
        )

    def _layer_struct(self, layer: LayerParts) -> LayerStruct:
        attention = layer.attention
        query, *others = (linear.struct for linear in attention.projections)
        query_norm, key_norm = attention.norms
        latents = attention.latents
        key, value = others or (LinearStruct(), LinearStruct())
        cosine, sine = map(self._address, layer.angles or (None, None))
        sinks = layer.rule.sinks
        if isinstance(layer.mlp, ExpertsParts):
            mlp, experts = MlpStruct(), self._experts_struct(layer.mlp)
        else:
            mlp, experts = self._mlp_struct(layer.mlp), None
        return LayerStruct(
            query=query,
            key=key,
            value=value,
            latents=None if latents is None else self._latents_struct(latents),
            output=attention.output.struct,
            mlp=mlp,
            experts=experts,
            attention_norm=self._norm_struct(layer.attention_norm),
            mlp_norm=self._norm_struct(layer.mlp_norm),
            attention_out_norm=self._norm_struct(layer.attention_out_norm),
            mlp_out_norm=self._norm_struct(layer.mlp_out_norm),
            query_norm=self._norm_struct(query_norm and query_norm[0]),
            key_norm=self._norm_struct(key_norm and key_norm[0]),
            cosine=cosine,
            sine=sine,
            sinks=None if sinks is None else self._address(sinks.detach().float()),
            window=layer.rule.visible.window or _UNLIMITED,
            scale=layer.rule.scale,
            softcap=layer.rule.softcap or 0,
        )

    def _latents_struct(self, latents: LatentParts) -> Any:
        down, norm = latents.query or (None, None)
        struct = LatentsStruct(
            down=latents.down.struct,
            up=latents.up.struct,
            query_down=LinearStruct() if down is None else down.struct,
            norm=self._norm_struct(latents.norm),
            query_norm=self._norm_struct(norm),
        )
        return ctypes.pointer(struct)

    def _experts_struct(self, experts: ExpertsParts) -> Any:
        router = experts.router
        mlps = [self._mlp_struct(mlp, experts.limit) for mlp in experts.mlps]
        shared = MlpStruct() if experts.shared is None else self._mlp_struct(experts.shared)
        rounded = router.weight.to(torch.bfloat16)
        is_wide = not torch.equal(rounded.to(router.weight.dtype), router.weight)
        struct = ExpertsStruct(
            router=None if is_wide else self._address(rounded),
            wide_router=self._address(router.weight.float()) if is_wide else None,
            bias=self._address(router.bias),
            correction=self._address(router.correction),
            mlps=(MlpStruct * len(mlps))(*mlps),
            shared=shared,
            shared_gate=self._address(experts.shared_gate),
            count=len(mlps),
            chosen=router.chosen,
            groups=router.groups.count,
            kept_groups=router.groups.kept,
            group_best=router.groups.best,
            sigmoid=router.sigmoid,
            normalizes=router.normalizes,
            scale=router.scale,
        )
        return ctypes.pointer(struct)

    def _mlp_struct(self, mlp: MlpParts, limit: float = 0) -> MlpStruct:
        def struct(columns: Columns | None) -> LinearStruct:
            if columns is None:
                return LinearStruct()
            return columns.linear.columns(columns.begin, columns.end)

        parts = (struct(mlp.gate), struct(mlp.up), struct(mlp.down))
        return MlpStruct(*parts, mlp.activation, limit)

    def _norm_struct(self, norm: NormParts | None) -> NormStruct:
        if norm is None:
            return NormStruct()
        weight, bias = self._address(norm.weight), self._address(norm.bias)
        return NormStruct(weight, bias, norm.epsilon, norm.centers)

    def _address(self, numbers: Tensor | None) -> int | None:
        """Return the address of a tensor, which is kept alive."""
        if numbers is None:
            return None
        _, kept = self._kept.setdefault(id(numbers), (numbers, numbers.contiguous()))
        return kept.data_ptr()

    def _bind(self, cache: KVCache) -> None:
        """Point the layers at the pages of ``cache``. Raises ValueError."""
        self._cache = cache
        self._model.num_blocks, self._model.block_size = cache.num_blocks, cache.block_size
        for i, layer in enumerate(self._parts.layers):
            pages = cache.layers[layer.module]
            if not pages.shape.packs_keys:
                raise ValueError("the C forward reads packed keys: make the cache with pack_keys")
            self._model.layers[i].keys = pages.key.data_ptr()
            self._model.layers[i].values = pages.value.data_ptr()
