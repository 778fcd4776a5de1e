"""Random models in bfloat16, in the shapes of families that are too large to be kept.

    python -m benchmarks.random_models SHAPE FOLDER

They have the tokenizer of the demo model, and its vocabulary unless the shape names another size.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.engine.turns import DEMO_MODEL
from workers.engine.checkpoints.reading.model_folder import read_tokenizer

SHAPES: dict[str, dict[str, Any]] = {
    "gemma4": {
        "model_type": "gemma4_text", "hidden_size": 768, "intermediate_size": 3072,
        "num_hidden_layers": 10, "num_kv_shared_layers": 5, "use_double_wide_mlp": True,
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 2,
        "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 128,
        "global_head_dim": 256, "hidden_size_per_layer_input": 128, "sliding_window": 512,
        "final_logit_softcapping": 30.0,
    },
    "qwen3_5": {
        "model_type": "qwen3_5_text", "hidden_size": 1024, "intermediate_size": 3584,
        "num_hidden_layers": 24, "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 16,
        "tie_word_embeddings": True, "vocab_size": 248320,
    },
    "lfm2": {
        "model_type": "lfm2", "hidden_size": 1024, "intermediate_size": 6656,
        "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 8,
        "layer_types": ["conv", "conv", "full_attention"] * 2 + ["conv", "conv"],
        "conv_L_cache": 3,
    },
    "granite4h": {
        "model_type": "granitemoehybrid", "hidden_size": 1024, "shared_intermediate_size": 2048,
        "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4,
        "layer_types": ["mamba"] * 4 + ["attention"] + ["mamba"] * 3, "num_local_experts": 0,
        "mamba_n_heads": 32, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1,
        "position_embedding_type": "nope", "residual_multiplier": 0.25,
    },
    "nemotron_h": {
        "model_type": "nemotron_h", "hidden_size": 1024, "intermediate_size": 4096,
        "hybrid_override_pattern": "M-M-M*-M-M-", "num_attention_heads": 16,
        "num_key_value_heads": 4, "head_dim": 64, "mamba_num_heads": 32, "mamba_head_dim": 64,
        "ssm_state_size": 128, "n_groups": 8,
    },
    "falcon_h1": {
        "model_type": "falcon_h1", "hidden_size": 1024, "intermediate_size": 2048,
        "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2,
        "head_dim": 64, "mamba_d_ssm": 1536, "mamba_n_heads": 24, "mamba_d_head": 64,
        "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_rms_norm": False,
    },
}  # fmt: skip
"""Gemma 4 E2B with half of its widths, and two of its seven periods of layers; Qwen3.5 0.8B; half
of the layers of LFM2 350M; a few layers of each of three families with state spaces of Mamba 2."""


def save_random(folder: Path, shape: str) -> Path:
    tokenizer = read_tokenizer(DEMO_MODEL)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    names = ("vocab_size", "vocab_size_per_layer_input")
    options: dict[str, Any] = dict.fromkeys(names, len(tokenizer))
    options |= {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    config = AutoConfig.for_model(**{**options, **SHAPES[shape]})
    make: Any = AutoModelForCausalLM.from_config
    make(config, dtype=torch.bfloat16).save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("shape", choices=SHAPES, metavar="SHAPE", help=", ".join(SHAPES))
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    args = parser.parse_args()
    save_random(args.folder, args.shape)


if __name__ == "__main__":
    main()
