"""Small GGUF files: random models of each architecture, stored in each type of blocks."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFWriter, get_tensor_name_map
from gguf.quants import quantize
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM

WORDS = ["<|endoftext|>", "<|im_start|>", "a", "b", "c", "ab", "abc", "Ġ"]
CONTROL, NORMAL = 3, 1
SIZES: dict[str, Any] = {
    "vocab_size": len(WORDS), "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 5000.0,
}  # fmt: skip
BLOCK = 256
Values = NDArray[np.float32]
Blocks = Callable[[Values], tuple[NDArray[np.uint8], Values]]
"""Takes rows of blocks [rows, n * 256]; returns their bytes [rows, ...] and what they stand for."""


def tiny_model(architecture: str, tied: bool = True, **options: Any) -> Any:
    torch.manual_seed(7)
    config = AutoConfig.for_model(architecture, **{**SIZES, "tie_word_embeddings": tied, **options})
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():  # norms and biases start as ones and zeros
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def interleaved(values: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows (half, pair) of each head as rows (pair, half), as llama.cpp stores those of Llama."""
    return values.view(heads, 2, -1, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _halves(numbers: NDArray[Any]) -> NDArray[np.uint8]:
    """As bytes of 16-bit floating point."""
    return numbers.astype("<f2")[..., None].view(np.uint8)


def q4_k(values: Values) -> tuple[NDArray[np.uint8], Values]:
    """Blocks of 256 in eight groups; a scale and a minimum of 6 bits each, of which the upper bits
    of the last four lie above the first four."""
    groups = values.reshape(-1, 8, 32)
    low, high = np.minimum(groups.min(2), 0), np.maximum(groups.max(2), 0)
    d = ((high - low) / 15).max(1, keepdims=True) / 63
    m = (-low).max(1, keepdims=True) / 63
    d, m = d.astype("<f2").astype(np.float32), m.astype("<f2").astype(np.float32)
    scales = np.ceil((high - low) / 15 / d).clip(0, 63).astype(np.uint8)
    minima = np.round(-low / m).clip(0, 63).astype(np.uint8)
    step, offset = (d * scales)[..., None], (m * minima)[..., None]
    q = np.round((groups + offset) / step).clip(0, 15).astype(np.uint8)
    first, last = slice(0, 4), slice(4, 8)
    packed = [
        scales[:, first] | scales[:, last] >> 4 << 6,
        minima[:, first] | minima[:, last] >> 4 << 6,
        scales[:, last] & 15 | (minima[:, last] & 15) << 4,
    ]
    nibbles = q[:, 0::2] | q[:, 1::2] << 4
    parts = [_halves(d), _halves(m), *packed, nibbles]
    flat = np.concatenate([part.reshape(len(groups), -1) for part in parts], 1)
    return flat.reshape(len(values), -1), (q * step - offset).reshape(values.shape)


def q6_k(values: Values) -> tuple[NDArray[np.uint8], Values]:
    """Blocks of 256 in 16 groups, each with a scale of 8 bits. The lower four bits of a value are
    in a nibble, the upper two beside those of three others."""
    groups = values.reshape(-1, 16, 16)
    wanted = np.abs(groups).max(2) / 31
    d = (wanted.max(1, keepdims=True) / 127).astype("<f2").astype(np.float32)
    scales = np.ceil(wanted / d).clip(1, 127).astype(np.int8)
    step = (d * scales)[..., None]
    q = (np.round(groups / step).clip(-32, 31) + 32).astype(np.uint8)
    quarters = q.reshape(-1, 2, 4, 32)  # of each half of a block
    low = np.concatenate(
        [quarters[:, :, 0] & 15 | (quarters[:, :, 2] & 15) << 4,
         quarters[:, :, 1] & 15 | (quarters[:, :, 3] & 15) << 4], 2
    )  # fmt: skip
    high = sum(quarters[:, :, i] >> 4 << 2 * i for i in range(4))
    parts = [low, np.asarray(high, dtype=np.uint8), scales.view(np.uint8), _halves(d)]
    flat = np.concatenate([part.reshape(len(groups), -1) for part in parts], 1)
    meant = ((q.astype(np.float32) - 32) * step).reshape(values.shape)
    return flat.reshape(len(values), -1), meant


OF_256 = {GGMLQuantizationType.Q4_K: q4_k, GGMLQuantizationType.Q6_K: q6_k}


def write_gguf(
    path: Path,
    architecture: str,
    model: Any,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, torch.Tensor] | None = None,
    ends: dict[str, int] | None = None,
    template: str = "{{ messages }}",
    control: Sequence[str] = (),
    tensors_of_a_part: int = 0,
    file_type: int | None = None,
) -> Path:
    """Write ``model``, with matrices in blocks of ``kind``, and further ``tensors``. ``ends`` are
    token ids by their names below ``tokenizer.ggml``; ``control`` replaces the last words."""
    config = model.config
    writer = GGUFWriter(path, architecture, split_max_tensors=tensors_of_a_part)
    writer.add_name("Tiny")
    if file_type is not None:
        writer.add_file_type(file_type)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    for key, value in {"rope.freq_base": SIZES["rope_theta"], **(metadata or {})}.items():
        add = writer.add_string if isinstance(value, str) else writer.add_float32
        (writer.add_uint32 if isinstance(value, int) else add)(f"{architecture}.{key}", value)
    add_tokenizer(writer, template, control)
    for key, token in (ends or {}).items():
        writer.add_uint32(f"tokenizer.ggml.{key}", token)
    kinds = {name: kind for kind, name in MODEL_ARCH_NAMES.items()}
    names = get_tensor_name_map(kinds[architecture], config.num_hidden_layers)
    for name, values in stored_values(architecture, model).items():
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        if values.dim() < 2 or kind == GGMLQuantizationType.F32:
            writer.add_tensor(stored, values.numpy())
        elif kind in OF_256:
            writer.add_tensor(stored, OF_256[kind](values.numpy())[0], raw_dtype=kind)
        else:
            writer.add_tensor(stored, quantize(values.numpy(), kind), raw_dtype=kind)
    for name, values in (tensors or {}).items():
        writer.add_tensor(name, values.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_tokenizer(writer: GGUFWriter, template: str, control: Sequence[str]) -> None:
    words = [*WORDS[: len(WORDS) - len(control)], *control]
    is_control = [CONTROL if word in (*WORDS[:2], *control) else NORMAL for word in words]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_types(is_control)
    writer.add_token_merges(["a b", "ab c"] if "abc" in words else ["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_chat_template(template)


def stored_values(architecture: str, model: Any) -> dict[str, torch.Tensor]:
    """The weights as a file has them, by names that gguf knows."""
    config = model.config
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    stored = {}
    for name, values in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        part = name.split(".")[-2]
        if architecture == "llama" and part in heads:
            values = interleaved(values, heads[part])
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            values = values + 1
        if name.endswith("experts.gate_up_proj"):
            gate, up = values.chunk(2, 1)
            stored[name.replace("gate_up_proj", "gate_proj.weight")] = gate
            name, values = name.replace("gate_up_proj", "up_proj.weight"), up
        elif name.endswith("experts.down_proj"):
            name += ".weight"
        stored[name] = values.contiguous()
    return stored


def split(folder: Path) -> tuple[list[Path], Any]:
    model = tiny_model("qwen2")
    write_gguf(folder / "a.gguf", "qwen2", model, tensors_of_a_part=10)
    return sorted(folder.glob("*.gguf")), model
