"""A pretended GPU: its tensors live on the CPU, but refuse to mix with tensors of the CPU.

An operation over tensors of both devices raises RuntimeError, as on a GPU. Copies between them are
allowed, and so are scalars and indices on the CPU. Operations that read values back, and so would
wait for a GPU, are counted.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

DEVICE = torch.device("meta")
"""Stands for a GPU: the only kind of device beside the CPU that every build of torch knows."""

aten = torch.ops.aten

_COPIES = {aten.copy_.default, aten._to_copy.default}
_INDEXING = {
    aten.index.Tensor,
    aten.index_put_.default,
    aten.index_put.default,
    aten._index_put_impl_.default,
}
_READS = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.equal.default,
    aten.masked_select.default,
    aten.bincount.default,
}


class OnDevice(Tensor):
    """A tensor that claims to be on the device. Its values are in ``make_for_cpu``."""

    make_for_cpu: Tensor

    @staticmethod
    def __new__(cls, real: Tensor) -> Self:
        tensor: Self = Tensor._make_wrapper_subclass(
            cls,
            real.shape,
            strides=real.stride(),
            storage_offset=real.storage_offset(),
            dtype=real.dtype,
            device=DEVICE,
        )
        tensor.make_for_cpu = real
        return tensor

    @classmethod
    def __torch_dispatch__(cls, operation: Any, *_: Any) -> Any:
        raise RuntimeError(f"{operation} outside of the pretended device")

    def tolist(self) -> Any:
        PretendDevice.num_reads += 1
        return self.make_for_cpu.tolist()


class PretendDevice(TorchDispatchMode):
    """A mode in which tensors can be made on :data:`DEVICE`."""

    num_reads = 0
    num_uploads = 0
    """Copies from the CPU that wait for the device."""

    def __torch_dispatch__(
        self, operation: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        leaves, tree = tree_flatten((args, kwargs or {}))
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        target = next((x for x in leaves if isinstance(x, torch.device)), None)
        PretendDevice.num_reads += operation in _READS
        PretendDevice.num_uploads += _is_blocking_upload(operation, args, kwargs or {}, target)
        args, kwargs = tree_unflatten(map(_to_cpu, leaves), tree)
        if operation is aten.histc.default:  # a GPU counts integers too
            args = (args[0].float(), *args[1:])
        result = operation(*args, **kwargs)
        if target is None and operation not in _COPIES:
            _refuse_mixtures(operation, tensors)
        if operation._schema.is_mutable:
            return tensors[0]
        if target is not None:
            on_device = target.type != "cpu"
        else:
            on_device = any(isinstance(x, OnDevice) for x in tensors)
        return tree_map_only(Tensor, OnDevice, result) if on_device else result


class _OutOfReach(TorchFunctionMode):
    """Does what torch would do out of reach of a dispatch mode, or would refuse to: makes tensors
    of lists, and views of parameters."""

    def __torch_function__(
        self, function: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function is torch.tensor and "device" in kwargs:
            device = kwargs.pop("device")
            return torch.tensor(*args, **kwargs).to(device)
        if function in (Tensor.__getitem__, Tensor.__setitem__):
            tensor, index, *rest = args
            indices = index if isinstance(index, tuple) else (index,)
            indices = tuple(torch.tensor(i) if isinstance(i, list) else i for i in indices)
            args = (tensor, indices if isinstance(index, tuple) else indices[0], *rest)
        if torch.is_inference_mode_enabled():
            args = tuple(_as_inferred(x) for x in args)
        return function(*args, **kwargs)


def _as_inferred(x: Any) -> Any:
    """Return a tensor of which torch makes views in inference mode."""
    return OnDevice(x.make_for_cpu) if isinstance(x, OnDevice) and not x.is_inference() else x


def _is_blocking_upload(
    operation: Any, args: Any, kwargs: dict[str, Any], target: torch.device | None
) -> bool:
    if operation is aten._to_copy.default:
        to_device = target is not None and target.type != "cpu"
        return to_device and not isinstance(args[0], OnDevice) and not kwargs.get("non_blocking")
    if operation is aten.copy_.default and isinstance(args[0], OnDevice):
        return not isinstance(args[1], OnDevice) and not (len(args) > 2 and args[2])
    return False


def _to_cpu(x: Any) -> Any:
    if isinstance(x, OnDevice):
        return x.make_for_cpu
    assert not isinstance(x, Tensor) or not x.is_meta, "a tensor without values"
    return torch.device("cpu") if isinstance(x, torch.device) else x


def _refuse_mixtures(operation: Any, inputs: list[Tensor]) -> None:
    checked = [x for x in inputs if x.dim()]
    if operation in _INDEXING:  # indices may be on the CPU; written values may not
        checked = [x for x in checked if x.is_floating_point()]
    if len({isinstance(x, OnDevice) for x in checked}) > 1:
        raise RuntimeError(f"{operation}: tensors are on the CPU and on a device")


@contextmanager
def pretended() -> Iterator[type[PretendDevice]]:
    PretendDevice.num_reads = PretendDevice.num_uploads = 0
    with PretendDevice(), _OutOfReach():
        yield PretendDevice


def move(module: torch.nn.Module) -> None:
    """Put parameters and buffers on the device."""
    for child in module.modules():
        for name, parameter in child._parameters.items():
            if parameter is not None:
                moved = OnDevice(parameter.detach())
                child._parameters[name] = torch.nn.Parameter(moved, requires_grad=False)
        for name, buffer in child._buffers.items():
            if buffer is not None:
                child._buffers[name] = OnDevice(buffer)
