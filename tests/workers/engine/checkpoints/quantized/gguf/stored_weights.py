"""Weights as llama.cpp's converters store them: permuted, split or merged, under the names of the
gguf package.

https://github.com/ggml-org/llama.cpp/tree/master/conversion
"""

import re
from collections.abc import Callable
from typing import Any

import torch
from gguf import MODEL_ARCH_NAMES, get_tensor_name_map
from torch import Tensor

from tests.workers.engine.checkpoints.quantized.gguf.small_files import interleaved

Weights = dict[str, Tensor]
"""By the names of a file, within a layer."""
Store = Callable[[Tensor, Any], Weights]
"""Takes a weight and the config."""


def store(name: str, model: Any) -> Weights:
    """Return the weights of a file, by its names."""
    architecture, config = name.split()[0], model.config
    kinds = {kind: number for number, kind in MODEL_ARCH_NAMES.items()}
    names = get_tensor_name_map(kinds[architecture], config.num_hidden_layers)
    rules = {**_RULES, **_OF_ARCHITECTURES.get(architecture, {})}
    stored = dict(_FACTORS.get(name, {}))
    for module, values in model.state_dict().items():
        if module.startswith("lm_head") and config.tie_word_embeddings:
            continue
        layer = re.search(r"\.(?:layers|h)\.(\d+)\.", module)
        rule = next((rule for end, rule in rules.items() if module.endswith(end)), None)
        each = {"": values} if rule is None else rule(values, config)
        for part, tensor in each.items():
            if part and layer:
                stored[f"blk.{layer[1]}.{part}"] = tensor
            else:
                known = names.get_name(module, try_suffixes=(".weight", ".bias"))
                assert known is not None, module
                stored[known] = tensor
    return stored


def _plus_one(values: Tensor, config: Any) -> Weights:
    return {"": values + 1}


def _as_is(values: Tensor, config: Any) -> Weights:
    return {"": values}


def _renamed(name: str) -> Store:
    return lambda values, config: {name: values}


def _paired(heads: str) -> Store:
    return lambda values, config: {"": interleaved(values, getattr(config, heads))}


def _split_experts(values: Tensor, config: Any) -> Weights:
    gate, up = values.chunk(2, 1)
    return {"ffn_gate_exps.weight": gate, "ffn_up_exps.weight": up}


def _split_turned_experts(values: Tensor, config: Any) -> Weights:
    return _split_experts(values.transpose(1, 2), config)


def _turned_down(values: Tensor, config: Any) -> Weights:
    return {"ffn_down_exps.weight": values.transpose(1, 2)}


def _every_other(values: Tensor, config: Any) -> Weights:
    turned = values.transpose(1, 2)
    return {"ffn_gate_exps.weight": turned[:, ::2], "ffn_up_exps.weight": turned[:, 1::2]}


def _every_other_bias(values: Tensor, config: Any) -> Weights:
    return {"ffn_gate_exps.bias": values[:, ::2], "ffn_up_exps.bias": values[:, 1::2]}


def _split_latent(values: Tensor, config: Any) -> Weights:
    each = values.view(config.num_attention_heads, -1, config.kv_lora_rank)
    keys, values = each.split([config.qk_nope_head_dim, config.v_head_dim], 1)
    return {"attn_k_b.weight": keys.transpose(1, 2), "attn_v_b.weight": values}


def _split_shared(values: Tensor, config: Any) -> Weights:
    kind = "_shexp" if config.num_local_experts else ""
    gate, up = values.chunk(2)
    return {f"ffn_gate{kind}.weight": gate, f"ffn_up{kind}.weight": up}


def _shared_down(values: Tensor, config: Any) -> Weights:
    return {f"ffn_down{'_shexp' if config.num_local_experts else ''}.weight": values}


def _ungrouped_falcon(values: Tensor, config: Any) -> Weights:
    heads, groups = config.num_attention_heads, config.num_kv_heads
    each = values.view(groups, heads // groups + 2, -1, values.shape[-1])
    parts = [each[:, :-2], each[:, -2:-1], each[:, -1:]]
    return {"": torch.cat([part.reshape(-1, values.shape[-1]) for part in parts])}


def _decay(values: Tensor, config: Any) -> Weights:
    return {"ssm_a": -torch.exp(values)}


def _decay_columns(values: Tensor, config: Any) -> Weights:
    return {"ssm_a": -torch.exp(values).unsqueeze(1)}


def _columns(name: str) -> Store:
    return lambda values, config: {name: values.unsqueeze(1)}


def _narrow(name: str) -> Store:
    return lambda values, config: {name: values.squeeze(1)}


def _groups(values: Tensor, config: Any) -> Weights:
    return {"ssm_norm.weight": values.view(config.mamba_n_groups, -1)}


def _split_by_key_head(values: Tensor, config: Any) -> Weights:
    """Queries, keys, values and gates of all heads, of those of one head after another."""
    heads, keys = config.linear_num_key_heads, config.linear_key_head_dim
    width = config.linear_num_value_heads // heads * config.linear_value_head_dim
    each = values.view(heads, -1, values.shape[-1]).split([keys, keys, width, width], 1)
    q, k, v, z = (part.flatten(0, 1) for part in each)
    return {"attn_qkv.weight": torch.cat([q, k, v]), "attn_gate.weight": z}


def _tiled(name: str, store_before: Store | None = None, dim: int = 0) -> Store:
    """The first head of values of each head of keys, then the second, and so on."""

    def tile(values: Tensor, config: Any) -> Weights:
        if store_before is not None:
            (values,) = store_before(values, config).values()
        keys = config.linear_num_key_heads
        each = config.linear_num_value_heads // keys
        columns = values.movedim(dim, 0)
        tiled = columns.reshape(keys, each, -1, *columns.shape[1:]).swapaxes(0, 1)
        return {name: tiled.reshape(columns.shape).movedim(0, dim)}

    return tile


def _tiled_after_keys(name: str) -> Store:
    def tile(values: Tensor, config: Any) -> Weights:
        values = values.squeeze(1)
        count = 2 * config.linear_num_key_heads * config.linear_key_head_dim
        (rest,) = _tiled("")(values[count:], config).values()
        return {name: torch.cat([values[:count], rest])}

    return tile


_RULES: dict[str, Store] = {
    "experts.gate_up_proj": _split_experts,
    "experts.down_proj": _renamed("ffn_down_exps.weight"),
    "e_score_correction_bias": _renamed("exp_probs_b.bias"),
}
_PAIRS: dict[str, Store] = {
    f"{part}_proj.{kind}": _paired(heads)
    for part, heads in (("q", "num_attention_heads"), ("k", "num_key_value_heads"))
    for kind in ("weight", "bias")
}
_NORMS: dict[str, Store] = {"linear_attn.norm.weight": _as_is, "norm.weight": _plus_one}
_ALL_NORMS: dict[str, Store] = {"norm.weight": _plus_one}
_GRANITE: dict[str, Store] = {
    **_PAIRS,
    "block_sparse_moe.router.weight": _renamed("ffn_gate_inp.weight"),
    "input_linear.weight": _split_shared,
    "output_linear.weight": _shared_down,
    "mamba.A_log": _decay_columns,
    "mamba.D": _columns("ssm_d"),
    "mamba.dt_bias": _renamed("ssm_dt.bias"),
    "mamba.conv1d.weight": _narrow("ssm_conv1d.weight"),
    "mamba.norm.weight": _groups,
}
_SHORT_CONVOLUTIONS: dict[str, Store] = {
    "conv.conv.weight": _narrow("shortconv.conv.weight"),
    "expert_bias": _renamed("exp_probs_b.bias"),
    "feed_forward.gate.weight": _renamed("ffn_gate_inp.weight"),
}
_DELTA_NETS: dict[str, Store] = {
    **_NORMS,
    "A_log": _tiled("ssm_a", _decay),
    "dt_bias": _tiled("ssm_dt.bias"),
    "in_proj_a.weight": _tiled("ssm_alpha.weight"),
    "in_proj_b.weight": _tiled("ssm_beta.weight"),
    "in_proj_z.weight": _tiled("attn_gate.weight"),
    "in_proj_qkv.weight": _tiled_after_keys("attn_qkv.weight"),
    "conv1d.weight": _tiled_after_keys("ssm_conv1d.weight"),
    "linear_attn.out_proj.weight": _tiled("ssm_out.weight", dim=1),
}
_OF_ARCHITECTURES: dict[str, dict[str, Store]] = {
    **dict.fromkeys(("arcee", "mistral3", "smollm3"), _PAIRS),
    **dict.fromkeys(("granite", "granitemoe", "granitehybrid"), _GRANITE),
    **dict.fromkeys(("lfm2", "lfm2moe"), _SHORT_CONVOLUTIONS),
    **dict.fromkeys(("gemma", "nemotron"), _ALL_NORMS),
    **dict.fromkeys(("qwen35", "qwen35moe"), _DELTA_NETS),
    "deepseek2": {"kv_b_proj.weight": _split_latent},
    "falcon": {"query_key_value.weight": _ungrouped_falcon},
    "gemma4": {
        "experts.gate_up_proj": _renamed("ffn_gate_up_exps.weight"),
        "layer_scalar": _renamed("layer_output_scale.weight"),
        "router.scale": _renamed("ffn_gate_inp.scale"),
        "router.per_expert_scale": _renamed("ffn_down_exps.scale"),
    },
    "gpt-oss": {
        "experts.gate_up_proj": _every_other,
        "experts.gate_up_proj_bias": _every_other_bias,
        "experts.down_proj": _turned_down,
        "experts.down_proj_bias": _renamed("ffn_down_exps.bias"),
        "sinks": _renamed("attn_sinks.weight"),
    },
    "hunyuan-moe": {"gate.wg.weight": _renamed("ffn_gate_inp.weight")},
    "llama4": {
        "experts.gate_up_proj": _split_turned_experts,
        "experts.down_proj": _turned_down,
    },
    "qwen3next": {
        **_NORMS,
        "A_log": _decay,
        "dt_bias": _renamed("ssm_dt.bias"),
        "conv1d.weight": _narrow("ssm_conv1d.weight"),
        "in_proj_qkvz.weight": _split_by_key_head,
    },
}
"""How weights are stored whose names end so; the first that fits. Others are stored as they are."""
_STILL = 1e30
_PROPORTIONAL: Weights = {"rope_freqs.weight": torch.tensor([1.0] * 2 + [_STILL] * 6)}
_FACTORS: dict[str, Weights] = {
    **dict.fromkeys(("gemma4", "gemma4 experts"), _PROPORTIONAL),
    "phi3 longrope": {
        "rope_factors_long.weight": torch.tensor([1.5, 2.0, 3.0, 4.0]),
        "rope_factors_short.weight": torch.tensor([1.0, 1.1, 1.2, 1.3]),
    },
}
"""Tensors that a file has for its rotary positions."""
