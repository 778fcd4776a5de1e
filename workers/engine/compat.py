"""Every private name of torch and transformers that the engine uses.

Their makers may change such a name in any release. ``tests/workers/engine/test_compat.py`` uses
each, and says with which releases it worked last.
"""

from collections.abc import Callable, Mapping, MutableMapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

DispatchMode = TorchDispatchMode

# torch ------------------------------------------------------------------------------------------


Context = Callable[[], AbstractContextManager[None]]

without_torch_functions: Context = torch._C.DisableTorchFunction
"""Compute without modes and subclasses that watch operations, inside the context."""

without_watched_tensors: Context = torch._C.DisableTorchFunctionSubclass
"""Compute with subclasses of tensors as with tensors, inside the context."""


def end_allocation_to_pool(device_index: int, pool: tuple[int, int]) -> None:
    """Have the allocator of a GPU leave the pool of a graph whose capture has failed."""
    torch._C._cuda_endAllocateToPool(device_index, pool)


def has_onednn_bfloat16() -> bool:
    """Return whether oneDNN multiplies in bfloat16 on this CPU."""
    return bool(torch._C._has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported())


def reorder_linear_weight(weight: Tensor) -> Tensor:
    """Return a weight as oneDNN multiplies it."""
    reordered: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return reordered


def multiply_reordered(hidden: Tensor, reordered: Tensor, bias: Tensor | None) -> Tensor:
    """Return the product with a weight of :func:`reorder_linear_weight`."""
    output: Tensor = torch.ops.mkldnn._linear_pointwise(hidden, reordered, bias, "none", [], "")
    return output


def make_finished_work() -> Any:
    """Return what an operation among ranks returns that has ended."""
    from torch._C._distributed_c10d import FakeWork  # absent from some builds

    return FakeWork().boxed()


def schema_name(operation: Any) -> str:
    """Return the whole name of an operation, such as ``c10d::broadcast_``."""
    name: str = operation._schema.name
    return name


# transformers -----------------------------------------------------------------------------------


def mask_functions(interface: Any) -> MutableMapping[str, Any]:
    """Return the functions that build masks, by the name of the attention function."""
    functions: MutableMapping[str, Any] = interface._global_mapping
    return functions


def has_class_for(auto_class: Any, config: Any) -> bool:
    """Return whether an automatic class has one for this configuration."""
    return type(config) in auto_class._model_mapping


def make_from_config(model_class: Any, config: Any, **options: Any) -> Any:
    """Return a model of this class, whose weights are drawn at random."""
    return model_class._from_config(config, **options)


def get_attention(config: object, default: str = "") -> str:
    """Return the name of the attention function that a configuration asks for."""
    name: str = getattr(config, "_attn_implementation", default)
    return name


def set_attention(config: Any, name: str) -> None:
    """Have a configuration ask for an attention function, even if its model cannot change it."""
    config._attn_implementation = name


def supports_sdpa(model: object) -> bool:
    """Return whether a model can attend by torch's scaled dot product."""
    return bool(getattr(model, "_supports_sdpa", False))


def let_attention_be_set(model_class: Any) -> None:
    """Let the attention function of a model class be set that says it has only its own."""
    model_class._can_set_attn_implementation_cached_value = True


def update_inputs(model: Any, outputs: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments with which ``generate`` computes the token after ``outputs``."""
    update: Callable[..., dict[str, Any]] = model._update_model_kwargs_for_generation
    return update(outputs, inputs)


def tensor_parallel_mesh(model: Any) -> Any:
    """Return the mesh of the ranks that sum the parts of a split model."""
    return model._mesh_manager.get_mesh("tp")


def forget_quantized(module: Any) -> None:
    """Have a module's configuration no longer say that its weights are quantized."""
    if getattr(getattr(module, "config", None), "_is_quantized", False):
        del module.config._is_quantized
