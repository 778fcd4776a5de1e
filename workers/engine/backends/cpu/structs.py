"""The structures of kernels/model.h."""

import ctypes

from workers.engine.backends.cpu.layers.linear import LinearStruct, PreparedStruct


class NormStruct(ctypes.Structure):
    """``Norm``."""

    _fields_ = [
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("epsilon", ctypes.c_float),
        ("centers", ctypes.c_int32),
    ]


class MlpStruct(ctypes.Structure):
    """``Mlp``."""

    _fields_ = [
        *((name, LinearStruct) for name in ("gate", "up", "down")),
        ("activation", ctypes.c_int32),
        *((name, ctypes.c_float) for name in ("gate_factor", "factor")),
        *((name, ctypes.c_float) for name in ("limit", "above", "below", "slope")),
    ]


class ExpertsStruct(ctypes.Structure):
    """``Experts``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("router", "wide_router", "bias", "correction")),
        ("mlps", ctypes.POINTER(MlpStruct)),
        ("shared", MlpStruct),
        ("shared_gate", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("count", "chosen")),
        *((name, ctypes.c_int32) for name in ("groups", "kept_groups", "group_best")),
        *((name, ctypes.c_int32) for name in ("sigmoid", "normalizes", "scales_inputs")),
        ("scale", ctypes.c_float),
        ("factors", ctypes.c_void_p),
        *((name, NormStruct) for name in ("router_norm", "norm", "out_norm", "mlp_out_norm")),
    ]


class LatentsStruct(ctypes.Structure):
    """``Latents``."""

    _fields_ = [
        *((name, LinearStruct) for name in ("down", "up", "query_down")),
        *((name, NormStruct) for name in ("norm", "query_norm")),
    ]


class ConvolutionStruct(ctypes.Structure):
    """``Convolution``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("taps", "bias", "inputs")),
        *((name, ctypes.c_int32) for name in ("kernel", "channels")),
    ]


class DeltaStruct(ctypes.Structure):
    """``Delta``."""

    _fields_ = [
        *((name, LinearStruct) for name in ("input", "gate")),
        *((name, ctypes.c_void_p) for name in ("rates", "decay", "decay_bias")),
        ("convolution", ConvolutionStruct),
        ("norm", NormStruct),
        ("states", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("key_heads", "value_heads", "key_dim", "value_dim")),
        *((name, ctypes.c_int32) for name in ("query_begin", "key_begin", "value_begin")),
        *((name, ctypes.c_int32) for name in ("gate_begin", "rates_begin")),
        *((name, ctypes.c_int32) for name in ("key_step", "value_step")),
    ]


class ShortConvolutionStruct(ctypes.Structure):
    """``ShortConvolution``."""

    _fields_ = [("input", LinearStruct), ("convolution", ConvolutionStruct)]


class StateSpaceStruct(ctypes.Structure):
    """``StateSpace``."""

    _fields_ = [
        ("input", LinearStruct),
        *((name, ctypes.c_void_p) for name in ("rates", "rate_bias", "decay", "skip", "factors")),
        ("convolution", ConvolutionStruct),
        ("norm", NormStruct),
        ("states", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("heads", "groups", "dim", "size")),
        *((name, ctypes.c_int32) for name in ("norm_span", "norms_first")),
        *((name, ctypes.c_float) for name in ("gate_factor", "rate_factor")),
        *((name, ctypes.c_float) for name in ("least_rate", "most_rate")),
        ("output", LinearStruct),
        *((name, ctypes.c_float) for name in ("output_factor", "attention_factor")),
    ]


class LayerInputsStruct(ctypes.Structure):
    """``LayerInputs``."""

    _fields_ = [
        ("embedding", ctypes.c_void_p),
        ("projection", LinearStruct),
        ("norm", NormStruct),
        ("size", ctypes.c_int32),
        *((name, ctypes.c_float) for name in ("embedding_scale", "projection_scale", "scale")),
    ]


class LayerInputStruct(ctypes.Structure):
    """``LayerInput``."""

    _fields_ = [
        *((name, LinearStruct) for name in ("gate", "projection")),
        ("norm", NormStruct),
        *((name, ctypes.c_int32) for name in ("activation", "begin")),
    ]


class HeadsStruct(ctypes.Structure):
    """``Heads``."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("heads", "kv_heads", "dim", "value_dim")),
        *((name, ctypes.c_int32) for name in ("head_step", "query_step", "kv_step", "key_begin")),
        *((name, ctypes.c_int32) for name in ("value_begin", "latent_begin")),
        *((name, ctypes.c_int32) for name in ("query_latent_begin", "query_span", "key_span")),
        *((name, ctypes.c_int32) for name in ("rotary_dim", "pairing")),
    ]


class LayerStruct(ctypes.Structure):
    """``Layer``."""

    _fields_ = [
        ("heads", ctypes.POINTER(HeadsStruct)),
        *((name, LinearStruct) for name in ("query", "key", "value")),
        ("latents", ctypes.POINTER(LatentsStruct)),
        ("delta", ctypes.POINTER(DeltaStruct)),
        ("short_convolution", ctypes.POINTER(ShortConvolutionStruct)),
        ("state_space", ctypes.POINTER(StateSpaceStruct)),
        ("output", LinearStruct),
        ("mlp", MlpStruct),
        ("experts", ctypes.POINTER(ExpertsStruct)),
        ("input", ctypes.POINTER(LayerInputStruct)),
        ("factor", ctypes.c_float),
        *((name, NormStruct) for name in ("attention_norm", "mlp_norm")),
        *((name, NormStruct) for name in ("attention_out_norm", "mlp_out_norm")),
        *((name, NormStruct) for name in ("query_norm", "key_norm", "value_norm")),
        ("norms_last", ctypes.c_int32),
        *((name, ctypes.c_float) for name in ("clip", "key_factor", "value_factor")),
        ("stores", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("cosine", "sine", "sinks")),
        *((name, ctypes.c_void_p) for name in ("temperatures", "keys", "values")),
        *((name, ctypes.c_int64) for name in ("window", "chunk")),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
    ]


class ModelStruct(ctypes.Structure):
    """``Model``."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("hidden", "width", "num_layers", "kinds")),
        ("block_size", ctypes.c_int32),
        ("heads", ctypes.POINTER(HeadsStruct)),
        ("parallel", ctypes.c_int32),
        *((name, ctypes.c_float) for name in ("embedding_scale", "residual_scale")),
        *((name, ctypes.c_float) for name in ("logits_scale", "logits_softcap")),
        ("num_blocks", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("embedding", "position_embedding")),
        ("inputs", ctypes.POINTER(LayerInputsStruct)),
        ("norm", NormStruct),
        ("head", LinearStruct),
        ("layers", ctypes.POINTER(LayerStruct)),
    ]


class BatchStruct(ctypes.Structure):
    """``Batch``."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("rows", "num_logits", "num_threads", "num_pieces")),
        *((name, ctypes.c_void_p) for name in ("pieces", "saves")),
        *((name, ctypes.c_void_p) for name in ("ids", "positions", "slots", "owners", "tables")),
        ("table_width", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("logits_rows", "logits", "residual", "branch")),
        *((name, ctypes.c_void_p) for name in ("normed", "projected", "layer_inputs")),
        *((name, ctypes.c_void_p) for name in ("queries", "attended", "activated")),
        ("prepared", PreparedStruct),
        *((name, ctypes.c_void_p) for name in ("routing", "chosen", "expert_weights")),
        *((name, ctypes.c_void_p) for name in ("expert_starts", "routes", "shared_routes")),
        *((name, ctypes.c_void_p) for name in ("gathered", "room")),
    ]
