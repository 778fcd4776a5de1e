"""Checkpoints whose files hold other tensors, or other numbers, than the model reads."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.conformance.families.shapes import tiny
from tests.workers.engine.tiny_models import LLAMA, save_model
from workers.engine.checkpoints.reading.checkpoint import read_model
from workers.engine.exceptions import UnsupportedModel

NAME = "model.layers.1.mlp.up_proj.weight"
EXPERTS = {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2,
           "moe_intermediate_size": 32, "head_dim": 16}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
    "topk_group": 1, "moe_intermediate_size": 32, "q_lora_rank": 32, "kv_lora_rank": 16,
    "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12, "first_k_dense_replace": 1,
    "num_key_value_heads": 4, "num_nextn_predict_layers": 1,
}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64}
CODEGEN = {**GPT2, "model_type": "codegen", "n_ctx": 64, "rotary_dim": 8}
GPTJ = {**GPT2, "model_type": "gptj", "rotary_dim": 8}
XGLM = {"model_type": "xglm", "d_model": 64, "ffn_dim": 96, "num_layers": 2, "attention_heads": 4}
NEOX = {**LLAMA, "model_type": "gpt_neox"}
OPT = {**LLAMA, "model_type": "opt", "ffn_dim": 96, "word_embed_proj_dim": 64}


def change(folder: Path, tensors: dict[str, Tensor], pickled: bool = False) -> Path:
    """Replace some tensors of a checkpoint, or add them."""
    weights = folder / "model.safetensors"
    changed = load_file(weights) | tensors
    if pickled:
        weights.unlink()
        torch.save(changed, folder / "pytorch_model.bin")
    else:
        save_file(changed, weights, {"format": "pt"})
    return folder


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8, torch.int32]
)
def test_other_numbers_than_floats_are_refused_by_name(
    tmp_path: Path, dtype: torch.dtype, pickled: bool, caplog: pytest.LogCaptureFixture
) -> None:
    folder = save_model(tmp_path)
    weight = load_file(folder / "model.safetensors")[NAME]
    change(folder, {NAME: (weight / weight.abs().max() * 100).to(dtype)}, pickled)
    kind = r"\w*" if pickled else "[FIU]"
    with pytest.raises(UnsupportedModel, match=rf"^{NAME} is stored as {kind}.* without its scale"):
        read_model(folder, torch.float32, "eager")
    assert "attention function" not in caplog.text, "it was read a second time"


def test_experts_of_other_numbers_are_refused_by_name(tmp_path: Path) -> None:
    folder = save_model(tmp_path, {**LLAMA, **EXPERTS})
    name = "model.layers.0.mlp.experts.3.down_proj.weight"
    weight = load_file(folder / "model.safetensors")[name]
    change(folder, {name: weight.to(torch.float8_e4m3fn)})
    with pytest.raises(UnsupportedModel, match=rf"^{name} is stored as F8_E4M3"):
        read_model(folder, torch.float32, "eager")


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.mlp.up_proj.weight_scale",
        "model.layers.1.mlp.up_proj.bias",
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.2.mlp.up_proj.weight",
        "model.embed_norm.weight",
        "lm_head.bias",
    ],
)
def test_a_tensor_that_nothing_reads_is_refused_by_name(
    tmp_path: Path, name: str, pickled: bool
) -> None:
    folder = change(save_model(tmp_path), {name: torch.ones(4)}, pickled)
    with pytest.raises(
        UnsupportedModel, match=rf"has {name}, which no module of LlamaForCausalLM takes: conf"
    ):
        read_model(folder, torch.float32, "eager")


def test_other_unread_tensors_are_counted(tmp_path: Path) -> None:
    more = {f"model.layers.{i}.x.weight_scale": torch.ones(1) for i in range(2)}
    folder = change(save_model(tmp_path), more)
    with pytest.raises(
        UnsupportedModel, match=r"layers\.0\.x\.weight_scale and 1 other tensor, which no"
    ):
        read_model(folder, torch.float32, "eager")


MASK = torch.ones(1, 1, 64, 64, dtype=torch.bool)
UNREAD: dict[str, tuple[dict[str, Any], dict[str, Tensor]]] = {
    "frequencies": (LLAMA, {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}),
    "shared output layer": ({**LLAMA, "tie_word_embeddings": True}, {}),
    "next tokens, by layer": (
        {**LLAMA, **DEEPSEEK},
        {"model.layers.2.eh_proj.weight": torch.ones(2),
         "model.layers.2.enorm.weight": torch.ones(2)},
    ),
    "next tokens, by name": (LLAMA, {"mtp.layers.0.mlp.up_proj.weight": torch.ones(2),
                                     "model.mtp_block.0.norm.weight": torch.ones(2)}),
    "images": (LLAMA, {"visual.blocks.0.mlp.weight": torch.ones(2),
                       "model.vision_tower.a.weight": torch.ones(2),
                       "multi_modal_projector.linear_1.weight": torch.ones(2)}),
    "masks": (GPT2, {"transformer.h.0.attn.bias": torch.ones(1, 1, 64, 64, dtype=torch.uint8),
                     "transformer.h.1.attn.masked_bias": torch.tensor(-1e4)}),
    "masks of CodeGen": (CODEGEN, {"transformer.h.0.attn.causal_mask": MASK}),
    "masks of GPT-NeoX": (NEOX, {"gpt_neox.layers.0.attention.bias": MASK,
                                 "gpt_neox.layers.0.attention.masked_bias": torch.tensor(-1e9)}),
    "tables of GPT-J": (GPTJ, {"transformer.h.0.attn.embed_positions": torch.ones(64, 8)}),
    "tables of XGLM": (XGLM, {"model.embed_positions.weights": torch.ones(64, 64)}),
    "tables of Llama": (LLAMA, {"model.layers.0.self_attn.rotary_emb.cos_cached": torch.ones(8)}),
    "frequencies of local layers": (LLAMA, {"model.rotary_emb_local.inv_freq": torch.ones(8),
                                            "model.pos_emb.inv_freq": torch.ones(8)}),
    "versions": (OPT, {"model.decoder.version": torch.ones(1)}),
    "values of texts": (GPT2, {"v_head.summary.weight": torch.ones(1, 64)}),
    "biases of zeros": (LLAMA, {"model.layers.0.mlp.up_proj.bias": torch.zeros(96)}),
    "positions": (LLAMA, {"model.embeddings.position_ids": torch.arange(4)}),
    "scales of the cache": (LLAMA, {"model.layers.0.self_attn.k_scale": torch.ones(1),
                                    "model.layers.0.self_attn.kv_scale": torch.ones(1)}),
}  # fmt: skip


@pytest.mark.represented_by("frequencies-False")
@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("case", UNREAD)
def test_tensors_that_change_nothing_may_be_unread(
    tmp_path: Path, case: str, pickled: bool
) -> None:
    options, tensors = UNREAD[case]
    folder = save_model(tmp_path, options)
    expected = read_model(folder, torch.float32, "eager").state_dict()
    if case == "shared output layer":
        tensors = {"lm_head.weight": expected["model.embed_tokens.weight"].clone()}
    read = read_model(change(folder, tensors, pickled), torch.float32, "eager").state_dict()
    assert read.keys() == expected.keys()
    for name, values in expected.items():
        assert torch.equal(read[name], values), name


def test_files_of_a_training_are_left_alone(tmp_path: Path) -> None:
    folder = change(save_model(tmp_path), {}, pickled=True)
    torch.save(argparse.Namespace(learning_rate=1e-5), folder / "training_args.bin")
    torch.save({"step": torch.tensor(7)}, folder / "optimizer.bin")
    read_model(folder, torch.float32, "eager")


def test_files_that_torch_wrote_in_an_old_form_are_checked(tmp_path: Path) -> None:
    folder = save_model(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    file = folder / "pytorch_model.bin"
    torch.save(tensors, file, _use_new_zipfile_serialization=False)
    read_model(folder, torch.float32, "eager")
    torch.save(
        {**tensors, NAME: tensors[NAME].to(torch.int8)}, file, _use_new_zipfile_serialization=False
    )
    with pytest.raises(UnsupportedModel, match=rf"^{NAME} is stored as int8"):
        read_model(folder, torch.float32, "eager")


def test_parts_that_torch_wrote_are_checked(tmp_path: Path) -> None:
    """Beside an adapter, whose file transformers does not read as the model."""
    folder = save_model(tmp_path)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    save_file({"lora_A.weight": torch.ones(2)}, folder / "adapter_model.safetensors")
    names = {name: f"pytorch_model-{1 + (name == NAME)}-of-2.bin" for name in tensors}
    index = {"metadata": {}, "weight_map": names}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    for file in set(names.values()):
        part = {name: tensors[name] for name in names if names[name] == file}
        torch.save(part, folder / file)
    read_model(folder, torch.float32, "eager")
    torch.save({NAME: tensors[NAME].to(torch.int8)}, folder / names[NAME])
    with pytest.raises(UnsupportedModel, match=rf"^{NAME} is stored as int8"):
        read_model(folder, torch.float32, "eager")


def test_tables_of_integers_that_the_model_has_too_are_read(tmp_path: Path) -> None:
    """DeepSeek V4 chooses experts of its first layers by token; its files name the module
    otherwise."""
    model = AutoModelForCausalLM.from_config(tiny("deepseek_v4", {}))
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    assert any(not each.is_floating_point() for each in stored.values())
    read_model(tmp_path, torch.float32, "eager")


def test_a_layer_too_many_is_refused_unless_it_predicts_tokens(tmp_path: Path) -> None:
    folder = save_model(tmp_path, {**LLAMA, **DEEPSEEK})
    change(folder, {"model.layers.3.enorm.weight": torch.ones(2)})
    with pytest.raises(UnsupportedModel, match=r"model\.layers\.3\.enorm\.weight, which no"):
        read_model(folder, torch.float32, "eager")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 2}))
    read_model(folder, torch.float32, "eager")
