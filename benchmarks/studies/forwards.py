"""Compare the C forward with the model's modules: tokens per second of one thread's CPU time.

    python -m benchmarks.studies.forwards [--model FOLDER, or --shape gemma4, lfm2, granite4h,
        nemotron_h or falcon_h1] [--dtype bfloat16] [--batches 1,8,32 --new-tokens 24,12,6]

``--shape`` makes a random model of a family. One engine takes turns with and without its C
forward; the products of its modules are the same kernels. It generates greedily from random
prompts. Medians.
"""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks import command_line
from benchmarks.command_line import print_columns
from benchmarks.engine.turns import DEMO_MODEL, Prompts, exactly, generate, random_prompts
from workers.engine.build import build_engine
from workers.engine.checkpoints.reading.model_folder import read_tokenizer
from workers.engine.config import EngineConfig
from workers.engine.engine import Engine

SHAPES: dict[str, dict[str, Any]] = {
    "gemma4": {
        "model_type": "gemma4_text", "hidden_size": 768, "intermediate_size": 3072,
        "num_hidden_layers": 10, "num_kv_shared_layers": 5, "use_double_wide_mlp": True,
        "layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 2,
        "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 128,
        "global_head_dim": 256, "hidden_size_per_layer_input": 128, "sliding_window": 512,
        "final_logit_softcapping": 30.0,
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
"""Gemma 4 E2B with half of its widths, and two of its seven periods of layers; half of the layers
of LFM2 350M; a few layers of each of three families with state spaces of Mamba 2."""


def save_random(folder: Path, shape: str) -> Path:
    """Write a random model with the demo model's tokenizer."""
    tokenizer = read_tokenizer(DEMO_MODEL)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    names = ("vocab_size", "vocab_size_per_layer_input")
    options: dict[str, Any] = dict.fromkeys(names, len(tokenizer))
    options |= {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    config = AutoConfig.for_model(**SHAPES[shape], **options)
    make: Any = AutoModelForCausalLM.from_config
    make(config, dtype=torch.bfloat16).save_pretrained(folder)
    return folder


def rate(engine: Engine, prompts: Prompts, new_tokens: int) -> float:
    """Return new tokens per second of CPU time. The prompts' time is included."""
    began = time.process_time()
    generate(engine, prompts, exactly(new_tokens))
    return len(prompts) * new_tokens / (time.process_time() - began)


def main() -> None:
    parser = command_line.parser(
        __doc__,
        model=DEMO_MODEL,
        shape="",
        dtype="bfloat16",
        batches=[1, 8, 32],
        new_tokens=[24, 12, 6],
        prompt_tokens=16,
        repeats=3,
    )
    args = parser.parse_args()
    if len(args.new_tokens) != len(args.batches):
        parser.error(
            "--new-tokens takes as many numbers as --batches, such as --batches 1,8 "
            "--new-tokens 24,12"
        )
    torch.set_num_threads(1)
    config = EngineConfig(
        device="cpu",
        dtype=args.dtype,
        max_num_seqs=max(args.batches),
        max_model_len=512,
        kv_cache_bytes=2**28,
        num_threads=1,
        speculation=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        model = save_random(Path(folder), args.shape) if args.shape else args.model
        engine = build_engine(model, config)
    runner: Any = engine.runner
    paged = runner._model
    seed = 0
    if engine.forward != "c":
        raise SystemExit(f"{args.model} is not computed in C, but by {engine.forward}")
    native = paged.native
    print_columns("rows", "modules", "C", "ratio")
    for batch, new_tokens in zip(args.batches, args.new_tokens, strict=True):
        rates: tuple[list[float], list[float]] = ([], [])
        for _ in range(args.repeats + 1):
            for found, forward in zip(rates, (None, native), strict=True):
                paged.native, seed = forward, seed + 1
                prompts = random_prompts(engine.vocab_size, batch, args.prompt_tokens, seed)
                found.append(rate(engine, prompts, new_tokens))
        modules, in_c = (statistics.median(found[1:]) for found in rates)  # the first warms up
        print_columns(batch, f"{modules:.1f}", f"{in_c:.1f}", f"{in_c / modules:.2f}")


if __name__ == "__main__":
    main()
