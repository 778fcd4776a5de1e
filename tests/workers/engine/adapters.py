"""LoRA adapters on disk, written by hand in PEFT's layout, and the base model merged with them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

LAYERS = ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")


def save_adapter(
    folder: Path,
    base: Path,
    rank: int = 4,
    seed: int = 1,
    layers: tuple[str, ...] = LAYERS,
    **config: Any,
) -> Path:
    """Random factors for ``layers`` of every block, strong enough to change what is generated."""
    draw = torch.Generator().manual_seed(seed)
    tensors = {}
    for path, linear in linears(AutoModelForCausalLM.from_pretrained(base), layers).items():
        prefix = f"base_model.model.{path}"
        down = torch.randn(rank, linear.in_features, generator=draw)
        up = torch.randn(linear.out_features, rank, generator=draw)
        tensors[f"{prefix}.lora_A.weight"] = down * linear.in_features**-0.5
        tensors[f"{prefix}.lora_B.weight"] = up * 0.5
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    settings = {
        "peft_type": "LORA", "r": rank, "lora_alpha": 8, "lora_dropout": 0.1, "bias": "none",
        "target_modules": [path.split(".")[1] for path in layers], "task_type": "CAUSAL_LM",
        "fan_in_fan_out": False, "use_dora": False, "modules_to_save": None, "alpha_pattern": {},
        "rank_pattern": {}, "megatron_core": "megatron.core", "init_lora_weights": True,
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps({**settings, **config}))
    return folder


def merge(base: Path, adapter: Path, scaling: dict[str, float], folder: Path) -> Path:
    """The base model with W + scaling * B A for weights, as a model folder of its own.

    ``scaling`` is by the end of a layer's path.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    tensors = load_file(adapter / "adapter_model.safetensors")
    with torch.no_grad():
        for path, linear in linears(model, tuple(scaling)).items():
            down = tensors[f"base_model.model.{path}.lora_A.weight"]
            up = tensors[f"base_model.model.{path}.lora_B.weight"]
            [factor] = [scaling[end] for end in scaling if path.endswith(end)]
            linear.weight += factor * (up @ down)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder


def linears(model: Any, layers: tuple[str, ...] = LAYERS) -> dict[str, Any]:
    return {path: module for path, module in model.named_modules() if path.endswith(layers)}
