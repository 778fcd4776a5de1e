"""Compare sparse attention over pages with the general way: tokens per second of small models.

    python -m benchmarks.studies.sparse_attention [--dtype bfloat16]
        [--family minimax_m3_vl_text --batches 1,8 --contexts 200 --new-tokens 8]

Two engines of one random model, with layers of the family's kinds, take turns: one over pages, one
that runs each sequence by itself as ``generate`` does. Prompts are computed before the clock
starts; those of all rows must fit into one step of 2,048 tokens, or the first rows end early.
Medians of wall and of processor time.
"""

import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks import command_line
from benchmarks.command_line import print_columns
from benchmarks.engine.turns import DEMO_MODEL, exactly, random_prompts
from completions.contract.sampling import SamplingParams
from workers.engine.build import build_engine
from workers.engine.checkpoints.parity.own_attention import OwnAttention
from workers.engine.checkpoints.reading.model_folder import read_tokenizer
from workers.engine.config import EngineConfig
from workers.engine.core.request import Request
from workers.engine.engine import Engine
from workers.engine.exceptions import UnsupportedModel

_SIZES: dict[str, Any] = {
    "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16,
    "num_experts_per_tok": 4, "index_head_dim": 128, "max_position_embeddings": 8192,
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "glm_moe_dsa": {
        **_SIZES, "intermediate_size": 2048, "moe_intermediate_size": 512,
        "first_k_dense_replace": 1, "num_key_value_heads": 16, "n_routed_experts": 16,
        "q_lora_rank": 512, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192,
        "v_head_dim": 256, "index_n_heads": 16, "index_topk": 64,
    },
    "deepseek_v4": {
        **_SIZES, "moe_intermediate_size": 512, "n_routed_experts": 16, "num_key_value_heads": 1,
        "head_dim": 256, "partial_rotary_factor": 0.25, "q_lora_rank": 512, "o_groups": 4,
        "o_lora_rank": 256, "index_n_heads": 16, "index_topk": 32, "sliding_window": 128,
        "layer_types": [*["heavily_compressed_attention", "compressed_sparse_attention"] * 2],
        "mlp_layer_types": ["hash_moe", *["moe"] * 3],
        "compress_rates": {"heavily_compressed_attention": 64, "compressed_sparse_attention": 4},
    },
    "minimax_m3_vl_text": {
        **_SIZES, "intermediate_size": 512, "dense_intermediate_size": 2048,
        "shared_intermediate_size": 512, "num_local_experts": 16, "num_key_value_heads": 2,
        "head_dim": 128, "index_n_heads": 2, "index_block_size": 16, "index_topk_blocks": 4,
        "layer_types": ["full_attention", *["minimax_m3_sparse"] * 3],
        "mlp_layer_types": ["dense", *["sparse"] * 3],
    },
}  # fmt: skip
"""GLM-5, DeepSeek-V4 and MiniMax M3 with a quarter of their width and heads, or less. They choose
few of the tokens, so that prompts of one step have more."""


def save_model(folder: Path, family: str) -> Path:
    tokenizer = read_tokenizer(DEMO_MODEL)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    eos: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    config = AutoConfig.for_model(family, **SHAPES[family], **eos, vocab_size=len(tokenizer))
    make: Any = AutoModelForCausalLM.from_config
    make(config, dtype=torch.bfloat16).save_pretrained(folder)
    return folder


def decode(
    engine: Engine, prompts: Sequence[tuple[int, ...]], new_tokens: int
) -> tuple[float, float]:
    """Return new tokens per second of wall and of processor time, once all rows decode."""
    params: SamplingParams = exactly(new_tokens)
    for i, prompt in enumerate(prompts):
        engine.submit(Request((prompt,), params, request_id=str(i)))
    counts = dict.fromkeys(map(str, range(len(prompts))), 0)
    ended: set[str] = set()
    began: tuple[float, float, int] | None = None
    while len(ended) < len(prompts):
        for output in engine.turn(wait=False):
            ended |= {output.request_id} if output.finished else set()
            counts[output.request_id] += sum(len(delta.token_ids) for delta in output.deltas)
        if began is None and all(counts.values()):
            began = time.perf_counter(), time.process_time(), sum(counts.values())
    assert began is not None
    made = sum(counts.values()) - began[2]
    return made / (time.perf_counter() - began[0]), made / (time.process_time() - began[1])


def build_engines(folder: Path, config: EngineConfig) -> dict[str, Engine]:
    """Return one engine over pages, and one that runs the general way."""
    refuse = mock.patch.object(OwnAttention, "compare", side_effect=UnsupportedModel("a study"))
    pages = build_engine(folder, config)
    with refuse:
        general = build_engine(folder, config)
    engines = {"pages": pages, "general": general}
    if (pages.forward, general.forward) != ("torch", "general"):
        raise SystemExit(f"the engines run {pages.forward} and {general.forward}")
    return engines


def main() -> None:
    parser = command_line.parser(
        __doc__,
        family="glm_moe_dsa",
        dtype="bfloat16",
        batches=[1, 8],
        contexts=[200],
        new_tokens=8,
        repeats=3,
        num_threads=2,
    )
    args = parser.parse_args()
    torch.set_num_threads(args.num_threads)
    config = EngineConfig(
        device="cpu",
        dtype=args.dtype,
        max_num_seqs=max(args.batches),
        max_num_batched_tokens=2048,
        max_model_len=max(args.contexts) + args.new_tokens + 64,
        kv_cache_bytes=2**29,
        num_threads=args.num_threads,
        speculation=False,
        enable_prefix_caching=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        engines = build_engines(save_model(Path(folder), args.family), config)
    print_columns("context", "rows", "pages", "general", "wall ratio", "CPU ratio")
    seed = 0
    for context in args.contexts:
        for batch in args.batches:
            rates: dict[str, list[tuple[float, float]]] = {name: [] for name in engines}
            for _ in range(args.repeats):
                for name, engine in engines.items():
                    seed += 1
                    prompts = random_prompts(engine.vocab_size, batch, context, seed)
                    rates[name].append(decode(engine, prompts, args.new_tokens))
            wall, processor = (
                {name: statistics.median(run[i] for run in runs) for name, runs in rates.items()}
                for i in (0, 1)
            )
            ratios = [each["pages"] / each["general"] for each in (wall, processor)]
            shown = [f"{wall[name]:.1f}" for name in engines]
            print_columns(context, batch, *shown, *(f"{ratio:.2f}" for ratio in ratios))


if __name__ == "__main__":
    main()
