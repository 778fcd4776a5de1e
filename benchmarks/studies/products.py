"""Time the C forward's products with weights that no cache holds, of each dtype by turns.

    python -m benchmarks.studies.products [--dtypes bfloat16,int8,int4] [--rows 1,8,32,64,128,512]
        [--inputs 576 --outputs 3072 --copies 48 --threads 1 --repeats 20]

Weights are as large as SmolLM2-135M's gate and up. Prints the fastest microseconds of a product,
with the rounding of its rows, how many billions of weights it reads per second, and the share of
what as many threads multiply with factors that stay in registers: pairs of bfloat16 for weights in
bfloat16, bytes for the others. Times are CPU times of the calling thread, which computes as much as
the others.
"""

import argparse
import ctypes
import time

import torch
from torch import nn

from benchmarks.command_line import print_columns
from benchmarks.engine.limits import measure_byte_products, measure_limits
from workers.engine.backends.cpu.layers.library import load_library
from workers.engine.backends.cpu.layers.linear import (
    Int4Linear,
    Int8Linear,
    PreparedRows,
    TiledLinear,
)

KINDS = {"bfloat16": TiledLinear, "int8": Int8Linear, "int4": Int4Linear}
_ROW_BLOCK = 32
"""The kernels may read rows up to a multiple of this."""


def fastest_pass(layers: list[TiledLinear], rows: int, threads: int) -> float:
    """Multiply by all layers in turn; return a layer's seconds in the fastest eight in a row."""
    library = load_library()
    assert library is not None
    padded = -(-rows // _ROW_BLOCK) * _ROW_BLOCK
    hidden = torch.randn(padded, layers[0].in_features, dtype=torch.bfloat16)
    output = torch.empty(rows, layers[0].out_features)
    room = PreparedRows(padded, layers[0].in_features)
    prepared, best = ctypes.byref(room.struct), float("inf")
    arguments = (ctypes.c_void_p(hidden.data_ptr()), rows, prepared)
    to = ctypes.c_void_p(output.data_ptr())
    structs = [layer.struct for layer in layers]
    for begin in range(0, len(structs), 8):
        chosen = structs[begin : begin + 8]
        began = time.thread_time()
        for struct in chosen:
            library.quire_linear(ctypes.byref(struct), *arguments, to, threads)
        best = min(best, (time.thread_time() - began) / len(chosen))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtypes", default="bfloat16,int8,int4")
    parser.add_argument("--rows", default="1,8,32,64,128,512")
    for name, value in {
        "inputs": 576,
        "outputs": 3072,
        "copies": 48,
        "threads": 1,
        "repeats": 20,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    library = load_library()
    if library is None:
        raise SystemExit("there are no C kernels for this processor")
    linear = nn.Linear(args.inputs, args.outputs, bias=False, dtype=torch.bfloat16)
    layers = {
        dtype: [KINDS[dtype](linear, library) for _ in range(args.copies)]
        for dtype in args.dtypes.split(",")
    }
    limits = dict.fromkeys(KINDS, measure_byte_products(args.threads))
    limits["bfloat16"] = measure_limits(args.threads).products
    for dtype in layers:
        print(f"{dtype}: at most {limits[dtype] / 1e9:.0f} G operations/s in registers")
    print_columns(
        "rows", *(f"{dtype} {unit}" for dtype in layers for unit in ("us", "G/s", "share"))
    )
    for rows in map(int, args.rows.split(",")):
        best = dict.fromkeys(layers, float("inf"))
        for _ in range(args.repeats):
            for dtype, layer in layers.items():
                best[dtype] = min(best[dtype], fastest_pass(layer, rows, args.threads))
        weights = args.inputs * args.outputs
        columns: list[str] = []
        for dtype, seconds in best.items():
            share = 2 * rows * weights / seconds / limits[dtype]
            columns += [f"{seconds * 1e6:.0f}", f"{weights / seconds / 1e9:.1f}", f"{share:.0%}"]
        print_columns(rows, *columns)


if __name__ == "__main__":
    main()
