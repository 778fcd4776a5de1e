"""Linear layers that are packed while their checkpoint is read are those that are packed after."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from completions.contract.sampling import SamplingParams
from tests.workers.engine import greedy
from tests.workers.engine.checkpoints.quantized import packing
from tests.workers.engine.checkpoints.quantized.stored_formats import FORMATS
from tests.workers.engine.tiny_models import LLAMA, save_model
from workers.engine.backends.cpu.layers.library import why_no_kernels
from workers.engine.backends.cpu.layers.linear import Int4Linear, Int8Linear, TiledLinear
from workers.engine.backends.cpu.layers.packed_linear import pack_linears
from workers.engine.build import build_engine
from workers.engine.checkpoints.reading import checkpoint
from workers.engine.checkpoints.reading.checkpoint import read_model
from workers.engine.config import ROUNDED_DTYPES, EngineConfig
from workers.engine.core.request import Request
from workers.engine.exceptions import UnsupportedModel

pytestmark = pytest.mark.skipif(why_no_kernels() is not None, reason=str(why_no_kernels()))

IN_C = {
    **LLAMA, "hidden_size": 128, "intermediate_size": 128, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 64, "attention_bias": True, "vocab_size": 416,
}  # fmt: skip
DELTA = {
    **IN_C, "model_type": "qwen3_5_text", "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
}  # fmt: skip
CLASSES = {"int8": Int8Linear, "int4": Int4Linear}

rounded = pytest.mark.parametrize("dtype", ROUNDED_DTYPES)


def config(dtype: str) -> EngineConfig:
    return EngineConfig(
        device="cpu", dtype=dtype, max_num_seqs=4, max_num_batched_tokens=64, kv_cache_bytes=2**22
    )


@rounded
@pytest.mark.parametrize("tied", [True, False])
def test_each_layer_is_packed_as_it_would_be_later(tmp_path: Path, dtype: str, tied: bool) -> None:
    path = save_model(tmp_path, {**IN_C, "tie_word_embeddings": tied})
    read = read_model(path, torch.bfloat16, "eager", packed=dtype)
    after = read_model(path, torch.bfloat16, "eager")
    kinds = {type(module) for module in read.modules()} & {torch.nn.Linear, *CLASSES.values()}
    assert kinds == {CLASSES[dtype], torch.nn.Linear if tied else Int8Linear}
    pack_linears(read, dtype)  # the output layer, where it is the embedding
    pack_linears(after, dtype)
    modules = dict(after.named_modules())
    compared = 0
    for name, module in read.named_modules():
        if isinstance(module, TiledLinear):
            other = modules[name]
            assert isinstance(other, TiledLinear)
            assert torch.equal(module._packed, other._packed)
            assert (module._bias is None) == (other._bias is None)
            compared += 1
    assert compared == 2 * 7 + 1


@rounded
def test_a_layer_that_is_left_alone_later_is_left_alone(tmp_path: Path, dtype: str) -> None:
    """Those with the rates of a gated delta network, which the C forward reads in 16 bits."""
    path = save_model(tmp_path, DELTA)
    read = read_model(path, torch.bfloat16, "eager", packed=dtype)
    after = read_model(path, torch.bfloat16, "eager")
    pack_linears(read, dtype)
    pack_linears(after, dtype)
    kinds = {name: type(module) for name, module in after.named_modules()}
    assert {name: type(module) for name, module in read.named_modules()} == kinds
    assert sum(kind is torch.nn.Linear for kind in kinds.values()) == 2
    assert not hasattr(read.config, "quantization_config")


def test_memory_is_refused_for_what_the_packed_weights_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, path = tmp_path / "source", tmp_path / "packed"
    path.mkdir()
    packing.rewrite(save_model(source, IN_C), path, *FORMATS["awq"])
    linear = 2 * (128 + 64 + 64 + 128 + 3 * 128) * 128 * 0.5625
    rest = 416 * 128 * (2 + 1) + 2 * (5 * 128 + 2 * (128 + 64 + 64 + 128))
    for free, fits in ((linear + rest, True), (linear + rest - 1, False)):
        monkeypatch.setattr(checkpoint, "available_memory", lambda free=free: free)
        if fits:
            read_model(path, torch.bfloat16, "eager", packed="int4")
        else:
            with pytest.raises(UnsupportedModel, match="GiB of memory in int4, and"):
                read_model(path, torch.bfloat16, "eager", packed="int4")


@pytest.mark.represented_by("awq-int8")
@rounded
@pytest.mark.parametrize("name", ["awq", pytest.param("gptq 8", marks=pytest.mark.long)])
def test_a_quantized_checkpoint_says_what_the_dequantized_one_says(
    tmp_path: Path, dtype: str, name: str
) -> None:
    source, packed, wide = (tmp_path / each for each in ("source", "packed", "wide"))
    packed.mkdir()
    save_model(source, IN_C)
    meant = packing.rewrite(source, packed, *FORMATS[name])
    save_model(wide, IN_C)
    save_file(meant, wide / "model.safetensors", {"format": "pt"})
    requests = [
        Request(
            (greedy.prompt(n, n),),
            SamplingParams(max_tokens=12, temperature=0),
            request_id=str(i),
        )
        for i, n in enumerate((3, 30))
    ]
    texts = []
    for path in (packed, wide):
        engine = build_engine(path, config(dtype))
        assert engine.forward == "c"
        texts.append([done.choices[0].token_ids for done in engine.generate(requests)])
    assert texts[0] == texts[1]
