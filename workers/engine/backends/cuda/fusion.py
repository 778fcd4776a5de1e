"""Fuses what a model's modules compute one after the other, without changing their code.

Three operations are deferred so that the next one can absorb them: residual addition into norm,
activation into gated multiplication, rotary embedding into the write to the KV cache. If another
operation comes next, the deferred one runs as it would have.

Norms and rotations are those that ``fusable`` recognises. So nothing here knows an architecture.
"""

import inspect
import sys
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, silu
from torch.overrides import TorchFunctionMode

from workers.engine.backends.cuda.fusable import (
    Activation,
    NormRule,
    RotationRule,
    get_norm_rule,
    get_rotation,
)
from workers.engine.backends.cuda.kv_cache import TokenMajorLayer
from workers.engine.compat import without_torch_functions

_ROTATION = "apply_rotary_pos_emb"
"""The name under which transformers' modules know their function (query, key, cosine, sine)."""

MAX_NORM = 16384
"""The most columns of a norm: beyond, a program would not keep its row in registers."""

_active: ContextVar["Fusion | None"] = ContextVar("fusion of the forward that runs", default=None)

_ADDITIONS = {Tensor.add, Tensor.__add__, torch.add}
_PRODUCTS = {Tensor.mul, Tensor.__mul__, torch.mul}
_LOOKS = {
    Tensor.shape.__get__,  # type: ignore[attr-defined]
    Tensor.dtype.__get__,  # type: ignore[attr-defined]
    Tensor.device.__get__,
    Tensor.ndim.__get__,  # type: ignore[attr-defined]
    Tensor.size,
    Tensor.dim,
    Tensor.stride,
    Tensor.is_contiguous,
}
"""What may be asked of a tensor whose numbers are not computed yet."""


def kernels() -> Any:
    from workers.engine.backends.cuda import fused_kernels  # needs triton

    return fused_kernels


@dataclass(slots=True, eq=False)
class _Sum:
    """``a + b``, to be written to ``total``."""

    total: Tensor
    a: Tensor
    b: Tensor

    def run(self) -> None:
        torch.add(self.a, self.b, out=self.total)


@dataclass(slots=True, eq=False)
class _Active:
    """The activation of ``gate``, to be written to ``active``."""

    active: Tensor
    gate: Tensor
    kind: Activation

    def run(self) -> None:
        if self.kind is Activation.SILU:
            torch.ops.aten.silu.out(self.gate, out=self.active)
        else:
            torch.ops.aten.gelu.out(self.gate, approximate="tanh", out=self.active)


@dataclass(slots=True, eq=False)
class _Multiplied:
    """A fused activation, whose own output was never written. It is written before the next
    operation if the model still references it; most models have dropped it by then."""

    active: "ref[Tensor]"
    gate: Tensor
    kind: Activation

    def run(self) -> None:
        if (active := self.active()) is not None:
            _Active(active, self.gate, self.kind).run()


@dataclass(slots=True, eq=False)
class _Turned:
    """``heads`` after a rotation, to be written to ``into``; each is [1, heads, tokens, dim]."""

    into: tuple[Tensor, Tensor]
    heads: tuple[Tensor, Tensor]
    tables: tuple[Tensor, Tensor]
    rule: RotationRule

    def flat(self) -> tuple[Any, ...]:
        """Heads [tokens, heads, dim], tables [tokens, width], rule and results, for a kernel."""
        query, key, new_query, new_key = (x[0].transpose(0, 1) for x in (*self.heads, *self.into))
        cosine, sine = self.tables
        return (query, key), (cosine[0], sine[0]), self.rule, (new_query, new_key)

    def run(self) -> None:
        kernels().rotate(*self.flat())


class Fusion(TorchFunctionMode):
    """Fuses the operations of a model's forward inside the context."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._waiting: _Sum | _Active | _Multiplied | _Turned | None = None
        self._sizes: set[int] = set()
        self._tokens: list[Any] = []
        self._wrapped: list[tuple[nn.Module, Callable[..., Tensor] | None]] = []
        rules: dict[Any, NormRule | None] = {}
        for module in model.modules():
            if (kind := _describe_result(module)) not in rules:
                rules[kind] = get_norm_rule(module)
        for name in {type(module).__module__ for module in model.modules()}:
            _install_rotation(sys.modules.get(name))
        for module in model.modules():
            if (rule := rules[_describe_result(module)]) is not None:
                self._install_norm(module, rule)

    def _install_norm(self, module: nn.Module, rule: NormRule) -> None:
        weight = getattr(module, "weight", None)
        if weight is not None:
            self._sizes.add(len(weight))
        own: Callable[..., Tensor] = module.forward

        @wraps(own)
        def forward(*args: Any, **kwargs: Any) -> Tensor:
            fusion = _active.get()
            if fusion is None or kwargs or len(args) != 1:  # a gate, for one, is another norm
                return own(*args, **kwargs)
            normal = fusion.normalize(args[0], weight, rule)
            return own(*args) if normal is None else normal

        self._wrapped.append((module, vars(module).get("forward")))
        module.forward = forward

    def remove(self) -> None:
        """Give the norms their own forward back. Rotations stay wrapped, as other models share
        them."""
        for module, own in self._wrapped:
            if own is None:
                del module.forward
            else:
                module.forward = own
        self._wrapped.clear()

    def __enter__(self) -> "Fusion":
        self._tokens.append(_active.set(self))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        _active.reset(self._tokens.pop())
        if error[0] is None:
            self.run_waiting()
        self._waiting = None

    def run_waiting(self) -> None:
        """Run the operation that was postponed, if there is one."""
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting.run()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in _LOOKS:
            return function(*args, **kwargs)
        if isinstance(self._waiting, _Active):
            if function in _PRODUCTS and not kwargs:
                product = self._multiply_gate(self._waiting, args)
                if product is not None:
                    return product
            active = self._waiting.active
            if function is linear and not any(x is active for x in (*args, *kwargs.values())):
                return function(*args, **kwargs)  # the other half
        self.run_waiting()
        if function in _ADDITIONS and not kwargs and len(args) == 2 and self._takes_sum(*args):
            self._waiting = _Sum(torch.empty_like(args[0]), *args)
            return self._waiting.total
        kind = _activation(function, args, kwargs)
        if kind is not None:
            self._waiting = _Active(torch.empty_like(args[0]), args[0], kind)
            return self._waiting.active
        return function(*args, **kwargs)

    def _multiply_gate(self, waiting: _Active, args: Any) -> Tensor | None:
        """Return the product of an activation that waits, if it is one that the kernel computes."""
        others = [x for x in args if x is not waiting.active]
        if len(others) != 1 or not _are_alike(waiting.gate, others[0]) or not _is_rows(others[0]):
            return None
        product: Tensor = kernels().gate(waiting.gate, others[0], waiting.kind)
        self._waiting = _Multiplied(ref(waiting.active), waiting.gate, waiting.kind)
        return product

    def _takes_sum(self, a: Any, b: Any) -> bool:
        """Return whether a norm may follow that adds ``a`` and ``b``."""
        return (
            _are_alike(a, b)
            and a.dim() == 3
            and len(a) == 1
            and a.shape[-1] in self._sizes
            and a.is_contiguous()
            and b.is_contiguous()
        )

    def normalize(self, x: Tensor, weight: Tensor | None, rule: NormRule) -> Tensor | None:
        """Return the norm of ``x`` by one kernel; None if it does not take this tensor."""
        with without_torch_functions():
            fits = x.dim() in (3, 4) and len(x) == 1 and x.stride(-1) == 1 and x.numel() > 0
            if weight is not None:
                fits = fits and weight.dtype == x.dtype and len(weight) == x.shape[-1]
            if not fits or x.shape[-1] > MAX_NORM:
                self.run_waiting()
                return None
            waiting, total, added = self._waiting, x, None
            if isinstance(waiting, _Sum) and waiting.total is x:
                x, added = waiting.a, waiting.b
                self._waiting = None
            self.run_waiting()
            normal: Tensor = kernels().normalize(x, added, weight, rule, total)
            return normal

    def rotate(self, function: Callable[..., Any], args: Any) -> tuple[Tensor, Tensor] | None:
        """Postpone ``function(*args)``; None if the kernel cannot replace it."""
        with without_torch_functions():
            self.run_waiting()
            query, key, cosine, sine = args
            width = cosine.shape[-1]
            fits = (
                query.dim() == key.dim() == 4
                and len(query) == 1
                and cosine.shape == sine.shape == (1, query.shape[2], width)
                and cosine.stride() == sine.stride()
                and all(x.stride(-1) == 1 for x in args)
                and query.dtype == key.dtype
            )
            if not fits:
                return None
            rule = get_rotation(function, query.dtype, cosine.dtype, query.shape[-1], width)
            if rule is None:
                return None
            into = (torch.empty_like(query), torch.empty_like(key))
            self._waiting = _Turned(into, (query, key), (cosine, sine), rule)
            return into

    def store(
        self,
        heads: tuple[Tensor, Tensor, Tensor],
        layer: TokenMajorLayer,
        slots: Tensor,
        *,
        keeps: bool,
    ) -> None:
        """Store keys and values in the cache, after turning queries and keys if that was postponed.
        ``heads`` are queries, keys and values [1, heads, tokens, dim]. A caller that ``keeps``
        needs the turned keys too."""
        with without_torch_functions():
            query, key, value = heads
            values = _make_columns_adjacent(value[0].transpose(0, 1))
            waiting = self._waiting
            if isinstance(waiting, _Turned) and waiting.into[0] is query and waiting.into[1] is key:
                self._waiting = None
                kernels().rotate_to_pages(*waiting.flat(), values, layer, slots, keeps=keeps)
                return
            self.run_waiting()
            keys = _make_columns_adjacent(key[0].transpose(0, 1))
            kernels().store(keys, values, layer, slots)


def active_fusion() -> Fusion | None:
    """Return the fusion of the forward that runs."""
    return _active.get()


def _describe_result(module: nn.Module) -> tuple[Any, ...]:
    """Return the class and settings of a module, and the shapes of its parameters: modules of one
    kind compute the same."""
    plain = (int, float, bool, str)
    settings = [(name, value) for name, value in vars(module).items() if isinstance(value, plain)]
    shapes = [(name, p.shape, p.dtype) for name, p in module.named_parameters(recurse=False)]
    return type(module), *settings, *shapes


def _install_rotation(module: Any) -> None:
    own = getattr(module, _ROTATION, None)
    if own is None or hasattr(own, "__wrapped_rotation__"):
        return
    if list(inspect.signature(own).parameters)[:4] != ["q", "k", "cos", "sin"]:
        return

    @wraps(own)
    def rotate(*args: Any, **kwargs: Any) -> Any:
        fusion = _active.get()
        if fusion is None or kwargs or len(args) != 4:
            return own(*args, **kwargs)
        output = fusion.rotate(own, args)
        return own(*args) if output is None else output

    rotate.__wrapped_rotation__ = own  # type: ignore[attr-defined]
    setattr(module, _ROTATION, rotate)


def _activation(function: Any, args: Any, kwargs: Any) -> Activation | None:
    """Return which activation is called, if the gate's kernel computes it of this tensor."""
    if len(args) != 1 or not isinstance(args[0], Tensor) or not _is_rows(args[0]):
        return None
    if function is silu and not kwargs.get("inplace"):
        return Activation.SILU
    if function is gelu and kwargs == {"approximate": "tanh"}:
        return Activation.GELU
    return None


def _is_rows(x: Tensor) -> bool:
    """Return whether a tensor is a matrix with further dimensions of 1, and its columns are
    adjacent."""
    is_matrix = x.dim() == 2 or (x.dim() == 3 and len(x) == 1)
    return is_matrix and x.stride(-1) == 1 and x.numel() > 0


def _make_columns_adjacent(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _are_alike(a: Any, b: Any) -> bool:
    return (
        isinstance(a, Tensor)
        and type(a) is type(b)
        and a.shape == b.shape
        and a.dtype == b.dtype
        and a.device == b.device
        and a.is_floating_point()
    )
