"""The C forward by context: prompt tokens per second from several positions on, and decode steps
after contexts of several lengths, each with its share of what this machine's products and memory
reach, which are measured in the same run.

    python -m benchmarks.engine.contexts [--model FOLDER] [--chunk 512]
        [--positions 0,512,1536,4096 --contexts 96,1000,2000 --batches 1,8,32,64]

A share is the time that the operations or the bytes of a step take at least, divided by the time
that it took; operations and bytes are those of the model's weights and of attention. Attention is
also measured by itself, without the rest of a layer. The fastest of some turns.
"""

import argparse
import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks import command_line
from benchmarks.command_line import print_columns
from benchmarks.engine.limits import Limits, load_measures, measure_limits
from benchmarks.engine.turns import DEMO_MODEL
from workers.engine.backends.cpu.attention import AttentionMetadata
from workers.engine.backends.cpu.kv_cache import KVCache
from workers.engine.backends.cpu.layers.linear import TiledLinear
from workers.engine.backends.cpu.structs import BatchStruct
from workers.engine.checkpoints.loader import load_model
from workers.engine.config import EngineConfig

Rates = dict[str, float | str]
Measures = tuple[Limits, list[list[Rates]]]
"""The limits of a machine, and the rates of steps: those of prompts, and those of decoding."""

BLOCK = 16
_ROW_BLOCK = 32
"""The kernels read rows up to a multiple of this."""


@dataclass(frozen=True, slots=True)
class Step:
    """So many sequences, each with ``rows`` successive tokens from ``position`` on."""

    sequences: int
    rows: int
    position: int

    @property
    def tokens(self) -> int:
        return self.sequences * self.rows

    @property
    def pairs(self) -> int:
        """How many pairs of a query's token and a token that it sees there are."""
        return self.tokens * self.position + self.sequences * self.rows * (self.rows + 1) // 2

    @property
    def stored(self) -> int:
        """The tokens whose keys and values are read."""
        return self.sequences * (self.position + self.rows)


@dataclass(frozen=True, slots=True)
class Result:
    """The seconds of a step, and of its attention in all layers."""

    step: Step
    whole: float
    attention: float


def count_weights(model: nn.Module) -> int:
    """Return the weights of linear layers, packed or not, the output layer among them."""
    linears = (x for x in model.modules() if isinstance(x, TiledLinear | nn.Linear))
    return sum(x.in_features * x.out_features for x in linears)


class Forward:
    """The C forward of a model, and a cache with room for the largest of some steps."""

    def __init__(self, loaded: Any, steps: Sequence[Step], threads: int) -> None:
        self._native = loaded.paged.native
        if self._native is None:
            raise SystemExit("the model is not computed in C")
        blocks = 1 + max(
            step.sequences * -(-(step.position + step.rows) // BLOCK) for step in steps
        )
        self._cache = KVCache(loaded.layer_shapes, blocks, BLOCK, loaded.dtype)
        for layer in self._cache.layers.values():  # memory that was never written reads as one page
            layer.key.uniform_(-1, 1), layer.value.uniform_(-1, 1)
        self._threads = threads
        if self._native.has_experts:
            raise SystemExit(
                "which weights a step reads depends on its experts: take another model"
            )
        if len(self._native._parts.kinds) != 1:
            raise SystemExit("its layers differ in their heads: take another model")
        model = loaded.paged.model
        self.weights: int = count_weights(model)
        head = model.get_output_embeddings()
        self.head: int = head.in_features * head.out_features
        shapes = loaded.layer_shapes
        self.token_bytes: int = loaded.block_bytes(1)
        heads = self._native._parts.kinds[0].heads
        each = 2 * heads.heads * (heads.dim + heads.value_dim)
        self.pair_operations: int = each * len(shapes)

    def operations(self, step: Step) -> float:
        """Those of a step that computes the logits of each sequence's last token."""
        products = step.tokens * (self.weights - self.head) + step.sequences * self.head
        return 2 * products + self.attention_operations(step)

    def bytes(self, step: Step) -> float:
        """Those that a step reads at least: all weights in bfloat16, and what it attends to."""
        return 2 * self.weights + self.attention_bytes(step)

    def attention_operations(self, step: Step) -> float:
        return step.pairs * self.pair_operations

    def attention_bytes(self, step: Step) -> float:
        return step.stored * self.token_bytes

    @torch.inference_mode()
    def measure(self, step: Step, repeats: int) -> Result:
        """Return the fastest of some runs of a step, and of its attention."""
        torch.set_num_threads(self._threads)
        width = -(-(step.position + step.rows) // BLOCK)
        tables = 1 + torch.arange(step.sequences * width).view(step.sequences, width)
        owners = torch.arange(step.sequences).repeat_interleave(step.rows)
        positions = step.position + torch.arange(step.rows).repeat(step.sequences)
        slots = tables[owners, positions // BLOCK] * BLOCK + positions % BLOCK
        metadata = AttentionMetadata(self._cache, slots, [], [], tables, owners)
        ids = torch.randint(1, 100, (step.tokens,), generator=torch.Generator().manual_seed(1))
        last = torch.arange(step.rows - 1, step.tokens, step.rows)
        whole = attention = float("inf")
        for _ in range(repeats + 1):  # the first one warms up, and is never the fastest
            began = time.perf_counter()
            self._native(ids, positions, metadata, last)
            whole = min(whole, time.perf_counter() - began)
            attention = min(attention, self._attend(positions, owners, tables))
        return Result(step, whole, attention)

    def _attend(self, positions: torch.Tensor, owners: torch.Tensor, tables: torch.Tensor) -> float:
        """Return the seconds of attention in all layers."""
        native, rows = self._native, len(positions)
        heads, padded = native._parts.kinds[0].heads, -(-rows // _ROW_BLOCK) * _ROW_BLOCK
        queries = torch.empty(padded, heads.heads * heads.dim, dtype=torch.bfloat16).uniform_(-1, 1)
        attended = torch.empty(padded, heads.heads * heads.value_dim, dtype=torch.bfloat16)
        room = torch.empty(self._threads, native._thread_bytes, dtype=torch.uint8)
        batch = BatchStruct(
            rows=rows,
            num_threads=self._threads,
            positions=positions.data_ptr(),
            owners=owners.data_ptr(),
            tables=tables.data_ptr(),
            table_width=tables.shape[1],
            queries=queries.data_ptr(),
            attended=attended.data_ptr(),
            room=room.data_ptr(),
        )
        layers: int = native._model.num_layers
        model = ctypes.byref(native._model)
        each = load_measures().quire_measure_attention(model, ctypes.byref(batch), 0, layers)
        return float(each) * layers


def describe(result: Result, forward: Forward, limits: Limits) -> Rates:
    """Return the rates of a step and of its attention, and their shares of the limits."""
    step, alone = result.step, result.attention
    needed = (forward.operations(step), forward.bytes(step))
    operations, size = forward.attention_operations(step), forward.attention_bytes(step)
    return {
        "tokens": f"{step.sequences} x {step.rows}",
        "after": step.position,
        "tokens/s": step.tokens / result.whole,
        "ms": 1e3 * result.whole,
        "limited by": limits.bound(*needed),
        "share": limits.seconds(*needed) / result.whole,
        "attention ms": 1e3 * alone,
        "Gflop/s": operations / alone / 1e9,
        "of products": operations / alone / limits.products,
        "GB/s": size / alone / 1e9,
        "of memory": size / alone / limits.memory,
    }


_FORMATS = {
    "tokens/s": ".0f",
    "ms": ".2f",
    "attention ms": ".2f",
    "Gflop/s": ".0f",
    "GB/s": ".1f",
    "share": ".0%",
    "of products": ".0%",
    "of memory": ".0%",
}


def print_rows(rows: Sequence[Rates]) -> None:
    print_columns(*rows[0])
    for row in rows:
        print_columns(*(format(value, _FORMATS.get(name, "")) for name, value in row.items()))


def find_steps(args: argparse.Namespace) -> tuple[list[Step], list[Step]]:
    """Return the steps of prompts, and those of decoding."""
    prompts = [Step(1, args.chunk, position) for position in args.positions]
    decoding = [Step(batch, 1, context) for context in args.contexts for batch in args.batches]
    return prompts, decoding


def measure(args: argparse.Namespace) -> Measures:
    """Return the limits of this machine, and the rows of prompts and of decoding."""
    steps = find_steps(args)
    every = [step for kind in steps for step in kind]
    longest = max(step.position + step.rows for step in every)
    config = EngineConfig(device="cpu", dtype="bfloat16", max_model_len=longest)
    forward = Forward(load_model(args.model, config), every, args.threads)
    limits = measure_limits(args.threads)
    rows = [
        [describe(forward.measure(step, args.repeats), forward, limits) for step in kind]
        for kind in steps
    ]
    return limits, rows


def print_all(limits: Limits, rows: Sequence[Sequence[Rates]]) -> None:
    """Print the limits, and a table of prompts and one of decoding."""
    print(
        f"products by {limits.instructions} reach {limits.products / 1e9:.0f} Gflop/s, "
        f"memory {limits.memory / 1e9:.1f} GB/s"
    )
    for kind in rows:
        print_rows(kind)


def main() -> None:
    parser = command_line.parser(
        __doc__,
        model=DEMO_MODEL,
        chunk=512,
        positions=[0, 512, 1536, 4096],
        contexts=[96, 1000, 2000],
        batches=[1, 8, 32, 64],
        repeats=5,
        threads=torch.get_num_threads(),
    )
    print_all(*measure(parser.parse_args()))


if __name__ == "__main__":
    main()
