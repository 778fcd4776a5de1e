"""Quantization formats, each with its settings and how the test packs weights in it."""

import json
from pathlib import Path
from typing import Any

import torch

from tests.workers.engine.checkpoints.quantized import packing
from tests.workers.engine.checkpoints.quantized.packing import Pack
from tests.workers.engine.tiny_models import LLAMA

MODEL = {**LLAMA, "intermediate_size": 128}
"""Widths of 64 and 128, which groups of 32 divide and blocks of 48 do not."""


def compressed(form: str, **rule: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {"strategy": "group", **rule}}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": group},
    }


GPTQ = {"quant_method": "gptq", "group_size": 32}


AUTO = {"quant_method": "auto-round", "group_size": 32, "sym": False, "data_type": "int"}


BNB = {"quant_method": "bitsandbytes"}


FORMATS: dict[str, tuple[dict[str, Any], Pack]] = {
    "fp8, one scale": ({"quant_method": "fp8"}, packing.fp8(None, None, "weight_scale_inv")),
    "fp8, blocks": (
        {"quant_method": "fp8", "weight_block_size": [48, 48]},
        packing.fp8(48, 48, "weight_scale_inv"),
    ),
    "fp8, blocks with powers of two": (
        {"quant_method": "fp8", "weight_block_size": [32, 32]},
        packing.fp8(32, 32, "weight_scale_inv", torch.float8_e8m0fnu),
    ),
    "fbgemm_fp8": ({"quant_method": "fbgemm_fp8"}, packing.fp8(1, None, "weight_scale")),
    "modelopt": (
        {"quant_method": "modelopt", "quant_algo": "FP8"},
        packing.fp8(None, None, "weight_scale"),
    ),
    "modelopt fp8 by row": (
        {"quant_method": "modelopt", "quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"},
        packing.fp8(1, None, "weight_scale"),
    ),
    "modelopt fp8 by block": (
        {"quant_method": "modelopt", "quant_algo": "FP8_PB_WO"},
        packing.modelopt_blocks,
    ),
    "modelopt nvfp4": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16},
        packing.modelopt_nvfp4,
    ),
    "modelopt mixed": (
        {
            "quant_method": "modelopt",
            "quant_algo": "MIXED_PRECISION",
            "quantized_layers": {
                "a": {"quant_algo": "FP8"},
                "b": {"quant_algo": "NVFP4", "group_size": 16},
            },
        },
        packing.modelopt_mixed,
    ),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}, packing.awq),
    "gptq 2": (GPTQ | {"bits": 2}, packing.gptq(2)),
    "gptq 3": (GPTQ | {"bits": 3}, packing.gptq(3)),
    "gptq 4": (GPTQ | {"bits": 4}, packing.gptq(4)),
    "gptq 4, act order": (GPTQ | {"bits": 4, "desc_act": True}, packing.gptq(4, shuffled=True)),
    "gptq 4, v2": (GPTQ | {"bits": 4, "checkpoint_format": "gptq_v2"}, packing.gptq(4, less=0)),
    "gptq 4, v2 as transformers 5 names it": (
        GPTQ | {"bits": 4, "format": "gptq_v2"},
        packing.gptq(4, less=0),
    ),
    "gptq 4, both names": (
        GPTQ | {"bits": 4, "checkpoint_format": "gptq", "format": "gptq_v2"},
        packing.gptq(4),
    ),
    "autoround 4": (
        AUTO | {"bits": 4, "packing_format": "auto_round:auto_gptq"},
        packing.gptq(4),
    ),
    "autoround 4 of gptqmodel": (
        AUTO | {"bits": 4, "packing_format": "auto_round:gptqmodel"},
        packing.gptq(4, less=0),
    ),
    "autoround 4 of awq": (
        AUTO | {"bits": 4, "packing_format": "auto_round:auto_awq"},
        packing.awq,
    ),
    "gptq 8": (GPTQ | {"bits": 8}, packing.gptq(8)),
    "compressed int8": (
        compressed("int-quantized", num_bits=8, strategy="channel"),
        packing.int8(),
    ),
    "compressed int8, asymmetric groups": (
        compressed("int-quantized", num_bits=8, group_size=32),
        packing.int8(32, symmetric=False),
    ),
    "compressed fp8": (
        compressed("float-quantized", num_bits=8, strategy="channel"),
        packing.fp8(1, None, "weight_scale"),
    ),
    "compressed fp8, blocks": (
        compressed("float-quantized", num_bits=8, block_structure=[48, 48]),
        packing.fp8(48, 48, "weight_scale"),
    ),
    "compressed int4": (
        compressed("pack-quantized", num_bits=4, group_size=32),
        packing.words(4, 32),
    ),
    "compressed int4, asymmetric": (
        compressed("pack-quantized", num_bits=4, group_size=32),
        packing.words(4, 32, symmetric=False),
    ),
    "compressed int4, act order": (
        compressed("pack-quantized", num_bits=4, group_size=32, actorder="group"),
        packing.words(4, 32, symmetric=False, shuffled=True),
    ),
    "compressed int8 in words": (
        compressed("pack-quantized", num_bits=8, group_size=64),
        packing.words(8, 64),
    ),
    "compressed mxfp4": (compressed("mxfp4-pack-quantized", num_bits=4), packing.mxfp4),
    "compressed nvfp4": (compressed("nvfp4-pack-quantized", num_bits=4), packing.nvfp4),
    "bitsandbytes nf4": (BNB | {"load_in_4bit": True}, packing.bitsandbytes("nf4")),
    "bitsandbytes nf4, nested": (
        BNB | {"load_in_4bit": True},
        packing.bitsandbytes("nf4", nested=True),
    ),
    "bitsandbytes fp4": (BNB | {"load_in_4bit": True}, packing.bitsandbytes("fp4")),
    "bitsandbytes int8": (BNB | {"load_in_8bit": True}, packing.llm_int8),
}


def state_modelopt(folder: Path, settings: dict[str, Any]) -> None:
    """Write ModelOpt's own file instead of the setting in config.json."""
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    document = {"producer": {"name": "modelopt"}, "quantization": settings}
    (folder / "hf_quant_config.json").write_text(json.dumps(document))
