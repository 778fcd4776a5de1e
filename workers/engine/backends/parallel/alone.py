"""Operations without the other ranks: whatever fails then leaves no rank waiting for another."""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from workers.engine.compat import DispatchMode, make_finished_work, schema_name

_COMMUNICATION = {"c10d", "_c10d_functional"}


class Alone(DispatchMode):  # type: ignore[no-untyped-call]
    """Inside this context, sums and exchanges among ranks return at once, with results of the right
    shape and wrong values. Other communication raises NotImplementedError."""

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # it becomes operations on the rank's own tensors first
        if operation.namespace in _COMMUNICATION:
            return _run_alone(schema_name(operation), args)
        return operation(*args, **(kwargs or {}))


def _run_alone(name: str, args: Any) -> Any:
    """Return the result of an operation, by its name and its arguments."""
    match name:
        case "c10d::allreduce_" | "c10d::broadcast_":
            return args[0], make_finished_work()
        case "c10d::_allgather_base_":
            output, own = args[:2]
            output.copy_(_repeat(own, len(output) // len(own)))
            return output, make_finished_work()
        case "_c10d_functional::all_reduce":
            return args[0].clone()
        case "_c10d_functional::all_gather_into_tensor":
            return _repeat(*args[:2])
        case "_c10d_functional::wait_tensor" | "_c10d_functional::_wrap_tensor_autograd":
            return args[0]
    raise NotImplementedError(f"{name} cannot run without the other ranks")


def _repeat(own: Tensor, size: int) -> Tensor:
    return torch.cat([own] * size)
