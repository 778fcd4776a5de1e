"""Checkpoints in the formats of quantizers, written bit by bit after their specifications."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
"""The columns in the eight nibbles of a word, the lowest first."""
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
NF4 = [
    -1.0, -0.6961928, -0.52507305, -0.39491749, -0.28444138, -0.18477343, -0.09105004, 0.0,
    0.0795803, 0.1609302, 0.24611230, 0.33791524, 0.44070983, 0.56261700, 0.72295684, 1.0,
]  # fmt: skip
"""QLoRA, appendix E, rounded to float32."""
FP4 = [0, 0.0052083, 0.6666667, 1, 0.3333333, 0.5, 0.1666667, 0.25]


@dataclass(frozen=True)
class Packed:
    """What a weight became: tensors by their suffix, and the values that they stand for."""

    parts: dict[str, Tensor]
    values: Tensor


Pack = Callable[[Tensor], Packed]
"""Takes a weight [out, in]; suffixes replace ``.weight``."""


def stream(numbers: NDArray[Any], bits: int) -> Tensor:
    """Rows of numbers as rows of int32 words, all bits one stream from the lowest on."""
    each = np.unpackbits(numbers.astype(np.uint8)[..., None], axis=-1, bitorder="little")
    flat = each[..., :bits].reshape(len(numbers), -1)
    flat = np.pad(flat, ((0, 0), (0, -flat.shape[1] % 32)))
    return torch.from_numpy(np.packbits(flat, axis=-1, bitorder="little").view("<i4").copy())


def grouped(
    weight: Tensor, bits: int, size: int, symmetric: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """Values from 0 on [out, in], and scales and zero points [out, groups]."""
    groups = weight.unflatten(1, (-1, size))
    top = 2**bits - 1
    low, high = groups.amin(2).clamp(max=0), groups.amax(2).clamp(min=0)
    if symmetric:
        high = torch.maximum(-low, high)
        low = -high
    scales = ((high - low) / top).half().float()
    zeros = (-low / scales).round().clamp(0, top)
    if symmetric:
        zeros = torch.full_like(zeros, 2 ** (bits - 1))
    values = (groups / scales[..., None] + zeros[..., None]).round().clamp(0, top)
    return values.flatten(1), scales, zeros


def awq(weight: Tensor, size: int = 32) -> Packed:
    q, scales, zeros = grouped(weight, 4, size)

    def words(columns: Tensor) -> Tensor:
        in_order = columns.unflatten(1, (-1, 8))[..., AWQ_ORDER].flatten(1)
        return stream(in_order.numpy(), 4)

    values = (q - zeros.repeat_interleave(size, 1)) * scales.repeat_interleave(size, 1)
    parts = {"qweight": words(q.T), "qzeros": words(zeros.T), "scales": scales.T.half()}
    return Packed(parts, values)


def gptq(bits: int, size: int = 32, less: int = 1, shuffled: bool = False) -> Pack:
    def pack(weight: Tensor) -> Packed:
        inputs = weight.shape[1]
        order = torch.randperm(inputs) if shuffled else torch.arange(inputs)
        q, scales, zeros = grouped(weight[:, order], bits, size)
        zeros = zeros.clamp(min=less)
        group_of = torch.empty(inputs, dtype=torch.int32)
        group_of[order] = (torch.arange(inputs) // size).int()
        q = q[:, order.argsort()]
        parts = {
            "qweight": stream(q.numpy(), bits).T,
            "qzeros": stream((zeros - less).T.numpy(), bits),
            "scales": scales.T.half(),
            "g_idx": group_of,
        }
        each = group_of.long()
        return Packed(parts, (q - zeros[:, each]) * scales[:, each])

    return pack


def fp8(
    rows: int | None, columns: int | None, suffix: str, dtype: torch.dtype = torch.float32
) -> Pack:
    """Scales for blocks of ``rows`` and ``columns``; None stands for all of them."""

    def pack(weight: Tensor) -> Packed:
        high, wide = weight.shape
        r, c = rows or high, columns or wide
        scales = torch.tensor(
            [[float(weight[i : i + r, j : j + c].abs().max()) / 448 for j in range(0, wide, c)]
             for i in range(0, high, r)]
        )  # fmt: skip
        if dtype == torch.float8_e8m0fnu:  # a type of powers of two
            scales = scales.log2().ceil().exp2()
        scales = scales.to(dtype)
        each = scales.float().repeat_interleave(r, 0)[:high].repeat_interleave(c, 1)[:, :wide]
        values = (weight / each).to(torch.float8_e4m3fn)
        if rows is None and columns is None:
            scales = scales.reshape(())
        return Packed({"weight": values, suffix: scales}, values.float() * each)

    return pack


def int8(size: int | None = None, symmetric: bool = True) -> Pack:
    """compressed-tensors' ``int-quantized``, by row or by groups of ``size``."""

    def pack(weight: Tensor) -> Packed:
        width = size or weight.shape[1]
        q, scales, zeros = grouped(weight, 8, width, symmetric)
        parts = {"weight": (q - 128).to(torch.int8), "weight_scale": scales}
        if not symmetric:
            parts["weight_zero_point"] = (zeros - 128).to(torch.int8)
        each = [x.repeat_interleave(width, 1) for x in (zeros, scales)]
        return Packed(parts, (q - each[0]) * each[1])

    return pack


def words(bits: int, size: int, symmetric: bool = True, shuffled: bool = False) -> Pack:
    """compressed-tensors' ``pack-quantized``."""

    def pack(weight: Tensor) -> Packed:
        inputs = weight.shape[1]
        order = torch.randperm(inputs) if shuffled else torch.arange(inputs)
        q, scales, zeros = grouped(weight[:, order], bits, size, symmetric)
        group_of = torch.empty(inputs, dtype=torch.int32)
        group_of[order] = (torch.arange(inputs) // size).int()
        q = q[:, order.argsort()]
        parts = {
            "weight_packed": stream(q.numpy(), bits),
            "weight_scale": scales,
            "weight_shape": torch.tensor(weight.shape),
        }
        if not symmetric:
            parts["weight_zero_point"] = stream(zeros.T.numpy(), bits).T
        if shuffled:
            parts["weight_g_idx"] = group_of
        each = group_of.long()
        return Packed(parts, (q - zeros[:, each]) * scales[:, each])

    return pack


def _nearest(values: Tensor, table: list[float]) -> Tensor:
    return (values[..., None] - torch.tensor(table)).abs().argmin(-1)


def _fp4(values: Tensor) -> tuple[Tensor, Tensor]:
    """Codes of E2M1 with a sign, and what they mean."""
    codes = _nearest(values.abs(), E2M1)
    means = torch.tensor(E2M1)[codes] * torch.where(values < 0, -1.0, 1.0)
    return codes + 8 * (values < 0), means


def _bytes(codes: Tensor, low_first: bool) -> Tensor:
    first, second = codes[..., 0::2], codes[..., 1::2]
    return (first + 16 * second if low_first else 16 * first + second).to(torch.uint8)


def mxfp4(weight: Tensor) -> Packed:
    """compressed-tensors' ``mxfp4-pack-quantized``, [..., out, in]."""
    groups = weight.unflatten(-1, (-1, 32))
    exponents = (groups.abs().amax(-1) / 6).log2().ceil()
    codes, means = _fp4(groups / exponents.exp2()[..., None])
    packed = _bytes(codes.flatten(-2), low_first=True)
    parts = {"weight_packed": packed, "weight_scale": (exponents + 127).to(torch.uint8)}
    return Packed(parts, (means * exponents.exp2()[..., None]).flatten(-2))


def nvfp4(weight: Tensor) -> Packed:
    overall = 448 * 6 / weight.abs().max()
    groups = weight.unflatten(1, (-1, 16))
    scales = (groups.abs().amax(2) / 6 * overall).to(torch.float8_e4m3fn)
    each = (scales.float() / overall)[..., None]
    codes, means = _fp4(groups / each)
    parts = {
        "weight_packed": _bytes(codes.flatten(1), low_first=True),
        "weight_scale": scales,
        "weight_global_scale": overall.reshape(1),
    }
    return Packed(parts, (means * each).flatten(1))


def modelopt_nvfp4(weight: Tensor) -> Packed:
    """ModelOpt's NVFP4: other names, and the scale for all multiplies."""
    packed = nvfp4(weight)
    parts = {
        "weight": packed.parts["weight_packed"],
        "weight_scale": packed.parts["weight_scale"],
        "weight_scale_2": (1 / packed.parts["weight_global_scale"]).reshape(()),
        "input_scale": torch.ones(()),
    }
    return Packed(parts, packed.values)


def modelopt_mixed(weight: Tensor) -> Packed:
    """Layers of one size in NVFP4, others in FP8."""
    is_square = weight.shape[0] == weight.shape[1]
    return modelopt_nvfp4(weight) if is_square else fp8(None, None, "weight_scale")(weight)


def modelopt_blocks(weight: Tensor) -> Packed:
    """ModelOpt's FP8_PB_WO: a scale for each block of 128 times 128, [rows, 1, columns, 1]."""
    packed = fp8(128, 128, "weight_scale")(weight)
    scales = packed.parts["weight_scale"][:, None, :, None]
    return Packed(packed.parts | {"weight_scale": scales}, packed.values)


def bitsandbytes(kind: str, nested: bool = False, block: int = 64) -> Pack:
    def pack(weight: Tensor) -> Packed:
        table = NF4 if kind == "nf4" else [*FP4, *(-x for x in FP4)]
        flat = weight.flatten().unflatten(0, (-1, block))
        highest = flat.abs().amax(1)
        state: dict[str, Any] = {
            "quant_type": kind,
            "blocksize": block,
            "dtype": "bfloat16",
            "shape": list(weight.shape),
        }
        parts = {"weight.absmax": highest, "weight.quant_map": torch.tensor(table)}
        if nested:
            offset = float(highest.mean())
            nested_map = torch.linspace(-1, 1, 256)
            of_block = torch.arange(len(highest)) // 16
            top = torch.stack([x.abs().max() for x in (highest - offset).split(16)])
            codes = _nearest((highest - offset) / top[of_block], nested_map.tolist())
            highest = nested_map[codes] * top[of_block] + offset
            state |= {"nested_blocksize": 16, "nested_offset": offset, "nested_dtype": "float32"}
            parts |= {
                "weight.absmax": codes.to(torch.uint8),
                "weight.nested_absmax": top,
                "weight.nested_quant_map": nested_map,
            }
        codes = _nearest(flat / highest[:, None], table)
        values = torch.tensor(table)[codes] * highest[:, None]
        text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        parts["weight"] = _bytes(codes.flatten(), low_first=False)[:, None]
        parts[f"weight.quant_state.bitsandbytes__{kind}"] = text
        return Packed(parts, values.view(weight.shape))

    return pack


def llm_int8(weight: Tensor) -> Packed:
    highest = weight.abs().amax(1)
    q = (weight / highest[:, None] * 127).round()
    parts = {
        "weight": q.to(torch.int8),
        "SCB": highest,
        "weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    return Packed(parts, q * (highest / 127)[:, None])


def rewrite(
    source: Path, target: Path, settings: dict[str, Any], pack: Pack, part: str = "proj.weight"
) -> dict[str, Tensor]:
    """Write the checkpoint in ``source`` with the weights whose names end in ``part`` packed, and
    return all tensors with the values that they stand for now."""
    tensors = load_file(source / "model.safetensors")
    stored: dict[str, Tensor] = {}
    meant: dict[str, Tensor] = {}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        for name, tensor in tensors.items():
            meant[name] = tensor
            if not name.endswith(part):
                stored[name] = tensor
                continue
            packed = pack(tensor)
            meant[name] = packed.values
            begin = name.removesuffix("weight")
            stored |= {begin + suffix: each.contiguous() for suffix, each in packed.parts.items()}
    for file in source.iterdir():
        if file.suffix != ".safetensors":
            (target / file.name).write_bytes(file.read_bytes())
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = settings
    (target / "config.json").write_text(json.dumps(config))
    save_file(stored, target / "model.safetensors", {"format": "pt"})
    return meant
