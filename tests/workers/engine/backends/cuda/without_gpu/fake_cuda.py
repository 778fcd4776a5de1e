"""A GPU on the CPU: models of any size run over fake tensors of device ``cuda``, without values.

Torch then does all that it does before a kernel starts: it checks devices, types and shapes, and
refuses to read a value back. Operations that would wait for a GPU are recorded, kernels are
counted, and the arguments of attention kernels are checked. Needs a process of its own
(:func:`start`), since the guard stays registered.
"""

import ctypes
import multiprocessing
import os
import subprocess
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from workers.engine.backends.base import attention as base_attention
from workers.engine.backends.base.cache_probe import CacheProbe
from workers.engine.backends.base.paged import PagedModel
from workers.engine.backends.cuda import attention, fusion, launches
from workers.engine.backends.cuda.backend import CudaBackend
from workers.engine.backends.cuda.fusable import (
    Activation,
    NormRule,
    RotationRule,
    get_norm_rule,
    get_rotation,
)
from workers.engine.backends.cuda.fusion import Fusion
from workers.engine.backends.cuda.inputs import (
    COLUMNS,
    POSITION,
    ROW,
    TOKEN,
    decode_metadata,
    mix_metadata,
)
from workers.engine.backends.cuda.kv_cache import Way
from workers.engine.backends.sparse.indexers import use_pages
from workers.engine.checkpoints.rotary import keep_frequencies
from workers.engine.core.layer_shape import EVERYTHING

GPU = torch.device("cuda", 0)
MAX_LEN = 4096
ROWS = 8
SMALL = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "vocab_size": 512,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": MAX_LEN,
}  # fmt: skip

aten = torch.ops.aten
_READING = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten.bincount.default,
    aten._unique2.default,
    aten.unique_consecutive.default,
}
_MOVING = {aten._to_copy.default, aten.to.device, aten.to.dtype_layout}
"""In inference mode, ``to`` reaches a dispatch mode as one operation."""
_INDEXING = {aten.index.Tensor, aten.index_put_.default}
_FREE = {
    "view", "_unsafe_view", "expand", "transpose", "t", "slice", "select", "unsqueeze", "squeeze",
    "permute", "as_strided", "alias", "detach", "split", "split_with_sizes", "reshape", "unbind",
    "chunk", "lift_fresh", "empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided",
    "sym_size", "sym_stride", "sym_numel", "device", "unfold", "diagonal",
    "view_as_complex", "view_as_real",
}  # fmt: skip
"""Operations that start no kernel."""


@dataclass
class Finding:
    """What one model's decode step and one step with prompts did."""

    layers: int
    ways: list[str]
    waits: list[str] = field(default_factory=list)
    decode_kernels: int = 0


def start(folder: Path) -> ProcessPoolExecutor:
    """A process with the fake GPU. ``folder`` takes the compiled guard."""
    guard = folder / "fake_guard.so"
    torch_folder = Path(torch.__file__).parent
    flags = ["-shared", "-fPIC", "-O0", "-std=c++20", f"-I{torch_folder}/include"]
    flags.append(f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}")
    source = Path(__file__).with_name("fake_guard.cpp")
    library = [f"-L{torch_folder}/lib", "-lc10", f"-Wl,-rpath,{torch_folder}/lib"]
    subprocess.run(["g++", *flags, "-o", str(guard), str(source), *library], check=True)
    executor = ProcessPoolExecutor(
        1, multiprocessing.get_context("spawn"), initializer=_register, initargs=(guard,)
    )
    executor.submit(os.getpid).result()
    return executor


def _register(guard: Path) -> None:
    ctypes.CDLL(str(guard), mode=ctypes.RTLD_GLOBAL)
    torch.set_num_threads(1)


class _Watch(TorchDispatchMode):
    def __init__(self, finding: Finding) -> None:
        super().__init__()
        self._finding = finding
        self.kernels: Counter[str] = Counter()

    def __torch_dispatch__(
        self, operation: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if operation in _READING:
            self._note(f"{operation} reads values back")
        if operation in _MOVING:
            named = args[1] if operation is aten.to.device else kwargs.get("device")
            target = torch.device(named or args[0].device)
            at = 3 if operation is aten.to.device else len(args)
            blocks = not (kwargs.get("non_blocking") or any(args[at : at + 1]))
            if blocks and target.type != args[0].device.type:
                self._note(f"a copy of {tuple(args[0].shape)} to {target} waits")
        if operation is aten.copy_.default:
            blocks = len(args) < 3 or not args[2]
            if blocks and args[0].device != args[1].device:
                self._note(f"a copy_ of {tuple(args[1].shape)} waits")
        if operation in _INDEXING and any(
            i is not None and i.device.type == "cpu" for i in args[1]
        ):
            self._note("an index comes from the CPU")
        if operation._opname not in _FREE:
            self.kernels[operation._opname] += 1
        return operation(*args, **kwargs)

    def _note(self, what: str) -> None:
        for frame in reversed(traceback.extract_stack()):
            if frame.filename == fusion.__file__:
                continue  # it passes calls on
            if "transformers/" in frame.filename or "/workers/engine/" in frame.filename.replace(
                "/tests/workers/", ""
            ):
                self._finding.waits.append(f"{what} at {frame.filename}:{frame.lineno}")
                return


def _flash(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor,
    max_q: int, max_k: int, *, scale: float, window_size: tuple[int, int], enable_gqa: bool,
    seqused_k: Tensor | None = None, block_table: Tensor | None = None,
    num_splits: int | None = None,
) -> Tensor:  # fmt: skip
    """Check what torch's FlashAttention checks. Returns a result of the right shape."""
    _check_half(query, key, value)
    assert query.shape[2] == key.shape[-1] == value.shape[-1]
    assert query.shape[2] % 8 == 0
    assert query.shape[1] % key.shape[-2] == 0
    assert enable_gqa or query.shape[1] == key.shape[-2]
    assert 1 <= max_q <= max_k
    counts = [cu_seq_q, cu_seq_k]
    if block_table is not None:
        assert seqused_k is not None
        assert key.shape[1] % 256 == 0
        assert block_table.stride(-1) == 1
        assert len(block_table) == len(seqused_k) == len(cu_seq_q) - 1
        assert num_splits == 1
        counts += [seqused_k, block_table]
    for tensor in counts:
        assert (tensor.dtype, tensor.device) == (torch.int32, GPU)
    assert all(tensor.is_contiguous() for tensor in counts[:3])
    assert window_size[1] in (0, -1)
    assert scale > 0
    return query.new_empty(*query.shape[:2], value.shape[-1]).fill_(0)


def _split(
    query: Tensor, layer: Any, table: Tensor, lengths: Tensor, max_length: int, rule: Any
) -> Tensor:
    """Check the arguments of our kernel, and make as many launches as it makes."""
    from workers.engine.backends.cuda import split_decode

    _check_half(query, layer.key, layer.value)
    assert (table.dtype, table.device, lengths.dtype) == (torch.int32, GPU, torch.int32)
    assert len(table) == len(lengths) == len(query)
    assert table.stride(-1) == 1
    assert lengths.is_contiguous()
    assert 1 <= max_length <= MAX_LEN
    sizes = split_decode.constants(layer.shape, query.shape[1] // layer.shape.num_kv_heads, 16)
    assert sizes["GROUP"] * layer.shape.num_kv_heads == query.shape[1]
    if rule.sinks is not None:
        assert rule.sinks.shape == query.shape[1:2]
        assert rule.sinks.is_contiguous()
    output = query.new_empty(*query.shape[:2], layer.shape.value_dim)
    return output.fill_(0).fill_(0)  # attend_part and join_parts


def _mix_latents(query: Tensor, tokens: Tensor, slots: Tensor, rank: int, _rule: Any) -> Tensor:
    """Check the arguments of our kernel, and make as many launches as it makes."""
    _check_half(query, tokens)
    assert query.shape[2] == tokens.shape[1] > rank
    assert (slots.dtype, slots.device, len(slots)) == (torch.int64, GPU, len(query))
    return query.new_empty(*query.shape[:2], rank).fill_(0).fill_(0)


class _FusedKernels:
    """Check the arguments of the fused kernels, and make as many launches as they make."""

    def normalize(
        self, x: Tensor, added: Tensor | None, weight: Tensor | None, rule: NormRule, total: Tensor
    ) -> Tensor:
        _check_half(x, *(tensor for tensor in (added, weight) if tensor is not None))
        assert len(x) == 1
        assert x.dim() in (3, 4)
        if added is not None:
            assert x.shape == added.shape == total.shape
            assert x.is_contiguous()
            assert added.is_contiguous()
            assert total.is_contiguous()
        if weight is not None:
            assert weight.shape == x.shape[-1:]
        return torch.empty_like(x).fill_(rule.epsilon)

    def gate(self, x: Tensor, up: Tensor, activation: Activation) -> Tensor:
        _check_half(x, up)
        assert x.shape == up.shape
        assert x.numel() == x.shape[-2] * x.shape[-1]
        return x.new_empty(x.shape).fill_(0)

    def rotate(self, heads: Any, tables: Any, rule: RotationRule, into: Any) -> None:
        for x, result in zip(heads, into, strict=True):
            _check_half(x, result)
            assert x.shape == result.shape
            assert rule.dim <= x.shape[-1]
        cosine, sine = tables
        assert cosine.shape == sine.shape
        assert cosine.device == sine.device == GPU
        assert cosine.stride() == sine.stride()
        assert cosine.stride(-1) == 1
        into[0].fill_(0)

    def rotate_to_pages(
        self, heads: Any, tables: Any, rule: RotationRule, into: Any, value: Tensor,
        layer: Any, slots: Tensor, *, keeps: bool,
    ) -> None:  # fmt: skip
        self.rotate(heads, tables, rule, into)
        _check_pages(heads[1], value, layer, slots)

    def store(self, key: Tensor, value: Tensor, layer: Any, slots: Tensor) -> None:
        _check_pages(key, value, layer, slots)
        layer.key.fill_(0)


def _check_pages(key: Tensor, value: Tensor, layer: Any, slots: Tensor) -> None:
    _check_half(key, value, layer.key, layer.value)
    assert key.shape[:2] == value.shape[:2] == (len(slots), layer.shape.num_kv_heads)
    assert (key.shape[2], value.shape[2]) == (layer.shape.key_dim, layer.shape.value_dim)
    assert (slots.dtype, slots.device) == (torch.int64, GPU)


def _rule_of(module: nn.Module) -> NormRule | None:
    with _disable_current_modes():
        return get_norm_rule(module)


def _rotation_of(*args: Any) -> RotationRule | None:
    with _disable_current_modes():
        return get_rotation(*args)


def _check_half(*tensors: Tensor) -> None:
    assert len({tensor.dtype for tensor in tensors}) == 1
    assert tensors[0].dtype in (torch.bfloat16, torch.float16)
    for tensor in tensors:
        assert tensor.device == GPU
        assert tensor.stride(-1) == 1


def study(
    model_type: str, options: dict[str, Any], ways: list[Way], block_size: int, *, fuses: bool
) -> Finding:
    """Run a model's decode step and a step with prompts on the fake GPU."""
    torch_cuda = {
        "get_device_capability": lambda _device=None: (9, 0),
        "is_current_stream_capturing": lambda: False,
    }
    with (
        patch.multiple(torch.cuda, **torch_cuda),
        patch.object(attention, "_kernel", _flash),
        patch.multiple(launches, split=_split, mix_latents=_mix_latents),
        patch.object(fusion, "kernels", _FusedKernels),
        patch.object(fusion, "get_rotation", _rotation_of),
        patch.object(fusion, "get_norm_rule", _rule_of),
        FakeTensorMode(allow_non_fake_inputs=False),
        torch.inference_mode(),
    ):
        backend = CudaBackend(torch.device("cpu"))
        backend._device, backend.ways = GPU, [*ways, Way.GATHERED]
        config = CONFIG_MAPPING[model_type](**{**SMALL, **options})
        make: Any = AutoModelForCausalLM.from_config
        model = make(config, dtype=torch.bfloat16, attn_implementation=backend.attention).eval()
        _move(model)
        keep_frequencies(model, MAX_LEN)
        use_pages(model)
        try:
            return _run(PagedModel(model), backend, block_size, fuses)
        except DataDependentOutputException as error:
            return Finding(0, [], [f"{error} reads values back"])


def _run(paged: PagedModel, backend: CudaBackend, block_size: int, fuses: bool) -> Finding:
    def ints(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int64, device=GPU)

    probe = CacheProbe()
    metadata = mix_metadata(probe, [2], [0], [ints(2), ints(2), ints(1), ints(1, 1)], block_size)
    with patch.object(base_attention, "get_visible", lambda _mask: EVERYTHING):
        paged(ints(2), ints(2), metadata, ints(2))
    cache = backend.make_cache(probe.shapes, 2 * ROWS, block_size, torch.bfloat16)
    finding = Finding(len(probe.shapes), sorted({x.way.name for x in cache.layers.values()}))
    if fuses:
        paged.fusion = Fusion(paged.model)
    width = MAX_LEN // block_size
    table = ints(ROWS, COLUMNS)
    tables = torch.empty((ROWS + 1, width), dtype=torch.int32, device=GPU)
    with _Watch(finding) as watch:
        metadata = decode_metadata(cache, table, tables.index_select(0, table[:, ROW]), MAX_LEN)
        paged(table[:, TOKEN], table[:, POSITION], metadata, ints(ROWS))
    finding.decode_kernels = watch.kernels.total()
    sizes, first = [1, 1, 5, 300], [7, 900, 0, 40]
    tokens = sum(sizes)
    moved = [ints(tokens), ints(5), ints(4), ints(4, width)]
    with _Watch(finding):
        metadata = mix_metadata(cache, sizes, first, moved, block_size)
        paged(ints(tokens), ints(tokens), metadata, ints(4))
    return finding


def _move(model: nn.Module) -> None:
    """Put parameters, buffers and other tensors of the modules on the fake GPU."""

    def there(tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=GPU)

    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(there(parameter), requires_grad=False)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = there(buffer)
        for name, value in list(vars(module).items()):
            if isinstance(value, Tensor):
                setattr(module, name, there(value))
