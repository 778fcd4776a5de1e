"""The structures of a recognised decoder for the C library."""

import ctypes
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from workers.engine.backends.cpu.kv_cache import KVCache
from workers.engine.backends.cpu.layers.linear import LinearStruct
from workers.engine.backends.cpu.recognition.convolutions import ShortConvolutionParts, Taps
from workers.engine.backends.cpu.recognition.decoders import DecoderParts
from workers.engine.backends.cpu.recognition.delta_networks import DeltaParts
from workers.engine.backends.cpu.recognition.heads import LatentParts
from workers.engine.backends.cpu.recognition.layer_inputs import LayerInputParts, LayerInputsParts
from workers.engine.backends.cpu.recognition.layers import (
    AttentionLayer,
    KindOfHeads,
    LayerParts,
    Network,
)
from workers.engine.backends.cpu.recognition.mlps import (
    Columns,
    ExpertsBesideMlp,
    ExpertsParts,
    MlpParts,
)
from workers.engine.backends.cpu.recognition.parts import NormParts
from workers.engine.backends.cpu.recognition.rotary import Pairing
from workers.engine.backends.cpu.recognition.state_spaces import StateSpaceParts
from workers.engine.backends.cpu.structs import (
    ConvolutionStruct,
    DeltaStruct,
    ExpertsStruct,
    HeadsStruct,
    LatentsStruct,
    LayerInputsStruct,
    LayerInputStruct,
    LayerStruct,
    MlpStruct,
    ModelStruct,
    NormStruct,
    ShortConvolutionStruct,
    StateSpaceStruct,
)
from workers.engine.backends.recurrent.states import StateKey, StateTable

_UNLIMITED = 2**62


class ModelStructs:
    """The structures of a decoder, and the tensors that they point to, kept alive. ``model`` is the
    structure of the whole."""

    def __init__(self, parts: DecoderParts) -> None:
        self._parts = parts
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        """By id, a tensor and its contiguous form."""
        self._cache: KVCache | None = None
        self._table: StateTable | None = None
        self.model = self._model_struct()

    def bind(self, cache: KVCache, table: StateTable | None) -> None:
        """Point the layers at the pages of ``cache`` and the states of ``table``. Raises
        ValueError."""
        if self._cache is cache and self._table is table:
            return
        self._cache, self._table = cache, table
        self.model.num_blocks, self.model.block_size = cache.num_blocks, cache.block_size
        for i, layer in enumerate(self._parts.layers):
            struct = self.model.layers[i]
            if layer.network is not None:
                assert table is not None
                self._bind_states(struct, layer.network, table)
            if not isinstance(layer.mixer, AttentionLayer):
                continue
            pages = cache.layers[layer.mixer.module]
            if not pages.shape.packs_keys:
                raise ValueError("the C forward reads packed keys: make the cache with pack_keys")
            struct.keys, struct.values = pages.key.data_ptr(), pages.value.data_ptr()

    def _bind_states(self, struct: LayerStruct, network: Network, table: StateTable) -> None:
        states = table.get_states(network.module)
        pointer = struct.delta or struct.short_convolution or struct.state_space
        pointer.contents.convolution.inputs = states[StateKey("convolution")].data_ptr()
        if not isinstance(network, ShortConvolutionParts):
            pointer.contents.states = states[StateKey("recurrence")].data_ptr()

    def _model_struct(self) -> ModelStruct:
        parts = self._parts
        kinds = (HeadsStruct * len(parts.kinds))(*map(_heads_struct, parts.kinds))
        structs = (LayerStruct * len(parts.layers))(*map(self._layer_struct, parts.layers))
        size = 0 if parts.inputs is None else parts.inputs.size
        for i, (layer, struct) in enumerate(zip(parts.layers, structs, strict=True)):
            if isinstance(layer.mixer, AttentionLayer):
                struct.heads = ctypes.pointer(kinds[parts.kinds.index(layer.mixer.kind)])
            if layer.input is not None:
                struct.input = self._layer_input_struct(layer.input, i * size)
        return ModelStruct(
            hidden=parts.embedding.shape[1],
            width=parts.width,
            num_layers=len(parts.layers),
            kinds=len(kinds),
            heads=kinds,
            parallel=parts.layers[0].parallel,
            embedding_scale=parts.embedding_scale,
            residual_scale=parts.residual_scale,
            logits_scale=parts.logits_scale,
            logits_softcap=parts.logits_softcap,
            embedding=parts.embedding.data_ptr(),
            position_embedding=self._address(parts.position_embedding),
            inputs=None if parts.inputs is None else self._layer_inputs_struct(parts.inputs),
            norm=self._norm_struct(parts.norm),
            head=parts.head.struct,
            layers=structs,
        )

    def _layer_struct(self, layer: LayerParts) -> LayerStruct:
        experts, mlp = layer.experts, layer.dense_mlp
        struct = LayerStruct(
            mlp=MlpStruct() if mlp is None else self._mlp_struct(mlp),
            experts=None if experts is None else self._experts_struct(layer, experts),
            factor=layer.factor,
            attention_norm=self._norm_struct(layer.attention_norm),
            mlp_norm=self._norm_struct(layer.mlp_norm),
            attention_out_norm=self._norm_struct(layer.attention_out_norm),
            mlp_out_norm=self._norm_struct(layer.mlp_out_norm),
        )
        if isinstance(layer.mixer, AttentionLayer):
            self._set_attention(struct, layer.mixer)
        elif layer.mixer is not None:
            struct.output = layer.mixer.output.struct
        if layer.network is not None:
            self._set_network(struct, layer, layer.network)
        return struct

    def _set_network(self, struct: LayerStruct, layer: LayerParts, network: Network) -> None:
        if isinstance(network, DeltaParts):
            struct.delta = ctypes.pointer(self._delta_struct(network))
        elif isinstance(network, StateSpaceParts):
            space = self._state_space_struct(network)
            if layer.beside is not None:
                space.output = network.output.struct
                space.output_factor = layer.beside.factor
                space.attention_factor = layer.beside.attention_factor
            struct.state_space = ctypes.pointer(space)
        else:
            convolution = self._convolution_struct(network.taps)
            struct.short_convolution = ctypes.pointer(
                ShortConvolutionStruct(network.input.struct, convolution)
            )

    def _set_attention(self, struct: LayerStruct, layer: AttentionLayer) -> None:
        attention = layer.parts
        struct.query, *others = (linear.struct for linear in attention.projections)
        for name, linear in zip(("key", "value"), others, strict=False):
            setattr(struct, name, linear)
        struct.stores, struct.norms_last = attention.stores, attention.norms_last
        struct.clip = attention.clip
        struct.key_factor, struct.value_factor = layer.key_factor, layer.value_factor
        struct.output = attention.output.struct
        if attention.latents is not None:
            struct.latents = self._latents_struct(attention.latents)
        names = ("query_norm", "key_norm", "value_norm")
        for name, norm in zip(names, attention.norms, strict=True):
            setattr(struct, name, self._norm_struct(norm and norm[0]))
        struct.cosine, struct.sine = map(self._address, layer.angles or (None, None))
        rule = layer.rule
        struct.sinks = None if rule.sinks is None else self._address(rule.sinks.detach().float())
        struct.temperatures = self._address(layer.temperatures)
        struct.window = rule.visible.window or _UNLIMITED
        struct.chunk = rule.visible.chunk or 0
        struct.scale, struct.softcap = rule.scale, rule.softcap or 0

    def _delta_struct(self, delta: DeltaParts) -> DeltaStruct:
        places = {field.name: getattr(delta.heads, field.name) for field in fields(delta.heads)}
        return DeltaStruct(
            input=delta.input.struct,
            gate=LinearStruct() if delta.gate is None else delta.gate.struct,
            rates=self._address(delta.rates),
            decay=self._address(delta.decay),
            decay_bias=self._address(delta.decay_bias),
            convolution=self._convolution_struct(delta.taps),
            norm=self._norm_struct(delta.norm),
            **places,
        )

    def _state_space_struct(self, space: StateSpaceParts) -> StateSpaceStruct:
        norm, factors = space.norm, space.factors
        least, most = space.limits
        return StateSpaceStruct(
            input=space.input.struct,
            rates=self._address(space.rates),
            rate_bias=self._address(space.rate_bias),
            decay=self._address(space.decay),
            skip=self._address(space.skip),
            factors=self._address(factors.convolved),
            convolution=self._convolution_struct(space.taps),
            norm=self._norm_struct(None if norm is None else norm.norm),
            heads=space.heads,
            groups=space.groups,
            dim=space.dim,
            size=space.size,
            norm_span=space.heads * space.dim if norm is None else norm.span,
            norms_first=norm is not None and norm.comes_first,
            gate_factor=factors.gate,
            rate_factor=factors.rate,
            least_rate=least,
            most_rate=most,
        )

    def _convolution_struct(self, taps: Taps) -> ConvolutionStruct:
        kernel, channels = taps.weight.shape
        weight, bias = self._address(taps.weight), self._address(taps.bias)
        return ConvolutionStruct(taps=weight, bias=bias, kernel=kernel, channels=channels)

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

    def _layer_inputs_struct(self, inputs: LayerInputsParts) -> Any:
        struct = LayerInputsStruct(
            embedding=self._address(inputs.embedding),
            projection=inputs.projection.struct,
            norm=self._norm_struct(inputs.norm),
            size=inputs.size,
            embedding_scale=inputs.embedding_scale,
            projection_scale=inputs.projection_scale,
            scale=inputs.scale,
        )
        return ctypes.pointer(struct)

    def _layer_input_struct(self, branch: LayerInputParts, begin: int) -> Any:
        struct = LayerInputStruct(
            gate=branch.gate.struct,
            projection=branch.projection.struct,
            norm=self._norm_struct(branch.norm),
            activation=branch.activation,
            begin=begin,
        )
        return ctypes.pointer(struct)

    def _experts_struct(self, layer: LayerParts, experts: ExpertsParts) -> Any:
        norms: tuple[NormParts | None, ...] = (None, None, None)
        if isinstance(layer.mlp, ExpertsBesideMlp):
            norms = (layer.mlp.norm, layer.mlp.out_norm, layer.mlp.mlp_out_norm)
        norm, out_norm, mlp_out_norm = map(self._norm_struct, norms)
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
            scales_inputs=router.scales_inputs,
            scale=router.scale,
            factors=self._address(router.factors),
            router_norm=self._norm_struct(experts.router_norm),
            norm=norm,
            out_norm=out_norm,
            mlp_out_norm=mlp_out_norm,
        )
        return ctypes.pointer(struct)

    def _mlp_struct(self, mlp: MlpParts, limit: float = 0) -> MlpStruct:
        def struct(columns: Columns | None) -> LinearStruct:
            if columns is None:
                return LinearStruct()
            return columns.linear.columns(columns.begin, columns.end)

        parts = (struct(mlp.gate), struct(mlp.up), struct(mlp.down))
        return MlpStruct(*parts, mlp.activation, mlp.gate_factor, mlp.factor, limit, *mlp.bends)

    def _norm_struct(self, norm: NormParts | None) -> NormStruct:
        if norm is None:
            return NormStruct()
        weight, bias = self._address(norm.weight), self._address(norm.bias)
        return NormStruct(weight, bias, norm.epsilon, norm.centers)

    def _address(self, numbers: Tensor | None) -> int | None:
        """Return the address of a tensor, which is kept alive."""
        if numbers is None:
            return None
        assert not numbers.is_meta
        _, kept = self._kept.setdefault(id(numbers), (numbers, numbers.contiguous()))
        return kept.data_ptr()


def _heads_struct(kind: KindOfHeads) -> HeadsStruct:
    heads, rotation = kind.heads, kind.rotation
    names = [field[0] for field in HeadsStruct._fields_ if hasattr(heads, field[0])]
    query_span, key_span = (span or 0 for span in kind.spans)
    return HeadsStruct(
        query_span=query_span,
        key_span=key_span,
        rotary_dim=rotation.dim if rotation else 0,
        pairing=rotation.pairing if rotation else Pairing.HALVES,
        **{name: getattr(heads, name) for name in names},
    )
