"""LoRA adapters: PEFT folders read without PEFT, and added to the rows of a batch that ask for one.

For a targeted linear layer W, a row x of an adapter gets W x + scaling * B (A x) (Hu et al., "LoRA:
Low-rank adaptation of large language models", 2021). The base product is computed once for all
rows; a row without an adapter costs nothing more.
"""

import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Rows
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import regex
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from completions.contract.adapters import CONFIG_FILE, WEIGHTS_FILE
from workers.engine.backends.base.linear import LinearLayer
from workers.engine.backends.base.transfers import to_device
from workers.engine.core.model_input import AdapterRows
from workers.engine.core.sequence import Sequence
from workers.engine.exceptions import UnsupportedAdapter

_KEY = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<part>[AB])\.weight")

_READ = frozenset({"peft_type", "r", "lora_alpha", "use_rslora", "alpha_pattern", "bias"})
_WITHOUT_EFFECT = frozenset(
    {
        # Settings of training, or already visible in the names and shapes of the weights.
        "target_modules",
        "exclude_modules",
        "layers_to_transform",
        "layers_pattern",
        "rank_pattern",
        "lora_dropout",
        "eva_config",
        "task_type",
        "inference_mode",
        # Settings that describe the origin.
        "base_model_name_or_path",
        "revision",
        "auto_mapping",
        "peft_version",
        # Settings of other features, each of which has its own switch.
        "megatron_core",
        "qalora_group_size",
        "loftq_config",
        "corda_config",
        "lora_ga_config",
    }
)
_PLAIN_INITS = (None, True, False, "gaussian", "eva", "orthogonal")
"""Values of ``init_lora_weights`` that leave the base model's weights unchanged."""


_LINEAR = (nn.Linear, LinearLayer)
_DEFAULT_ALPHA = 8
"""PEFT's default, for a configuration without a value."""
_PATTERN_SECONDS = 2.0
"""For the patterns of one adapter."""


class LowRank(NamedTuple):
    """What an adapter adds to one layer: ``up @ (down @ x)``, the scaling within ``up``."""

    down: Tensor
    """A [rank, in_features]."""
    up: Tensor
    """scaling * B [out_features, rank]."""

    @property
    def num_bytes(self) -> int:
        return self.down.nbytes + self.up.nbytes


Deltas = Mapping[nn.Module, LowRank]
"""What one adapter adds, by the layer that it adds it to."""


class _Target:
    """A forward hook of one linear layer: adds the output of the current batch's adapters."""

    def __init__(self, adapters: "Adapters", module: nn.Module) -> None:
        self.deltas: dict[str, LowRank] = {}
        self.handle: RemovableHandle = module.register_forward_hook(self)
        self._adapters = adapters

    def __call__(self, _module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        for group in self._adapters.batch:
            delta = self.deltas.get(group.adapter)
            if delta is not None:
                hidden = inputs[0].flatten(0, -2).index_select(0, group.rows)
                rows = output.view(-1, output.shape[-1])
                rows.index_add_(0, group.rows, hidden @ delta.down.T @ delta.up.T)


@dataclass(slots=True)
class Adapters:
    """The adapters of one model, hooked into its linear layers. Without any there are no hooks."""

    model: Any = None
    """The model of transformers."""
    names: frozenset[str] = frozenset()
    """Those that are loaded with the model. Others come and go."""
    batch: list[AdapterRows] = field(default_factory=list)
    """The rows of the running forward that use adapters; each adapter occurs at most once."""
    _targets: dict[nn.Module, _Target] = field(default_factory=dict)
    _seeing: frozenset[nn.Module] | None = None
    """The linear layers that receive the whole flat batch; None before :meth:`checking`."""

    @classmethod
    def load(cls, model: Any, folders: Mapping[str, Path]) -> "Adapters":
        """Read PEFT folders by adapter name for a model of transformers. Raises UnsupportedAdapter,
        which names the adapter and its fault."""
        adapters = cls(model, frozenset(folders))
        for name, folder in folders.items():
            try:
                adapters.add(name, adapters.read(folder))
            except UnsupportedAdapter as error:
                raise UnsupportedAdapter(f"adapter {name!r} in {folder}: {error}") from error
        return adapters

    def read(self, folder: Path) -> Deltas:
        """Read a PEFT folder and check it against the model. Any thread may call it. Raises
        UnsupportedAdapter."""
        deltas: dict[nn.Module, LowRank] = {}
        for path, delta in _read_folder(folder, self.model.dtype, self.model.device).items():
            module = _find_linear(self.model, path)
            shape = (delta.up.shape[0], delta.down.shape[1])
            if shape != (module.out_features, module.in_features):
                raise UnsupportedAdapter(
                    f"{path} has weights for {shape[1]} to {shape[0]} features, "
                    f"the model's layer is {module.in_features} to {module.out_features}"
                )
            if self._seeing is not None and module not in self._seeing:
                raise UnsupportedAdapter(f"{path} does not see every token")
            deltas[module] = delta
        return deltas

    def add(self, name: str, deltas: Deltas) -> None:
        """Let rows of later forwards use an adapter."""
        for module, delta in deltas.items():
            if module not in self._targets:
                self._targets[module] = _Target(self, module)
            self._targets[module].deltas[name] = delta

    def remove(self, name: str) -> None:
        """Free an adapter that no sequence uses."""
        for module, target in list(self._targets.items()):
            if target.deltas.pop(name, None) is not None and not target.deltas:
                target.handle.remove()
                del self._targets[module]

    def lay_rows(
        self,
        sequences: Rows[Sequence],
        owner: NDArray[np.int64],
        device: torch.device | None = None,
    ) -> list[AdapterRows]:
        """Return which rows of a flat batch each adapter is added to; row i belongs to the sequence
        ``owner[i]``."""
        members: dict[str, list[int]] = {}
        for i, seq in enumerate(sequences):
            if (adapter := seq.adapter) is not None:
                members.setdefault(adapter, []).append(i)
        if not members:
            return []
        rows = [np.isin(owner, indices).nonzero()[0] for indices in members.values()]
        moved = to_device(rows, device or torch.device("cpu"))
        return [AdapterRows(name, part) for name, part in zip(members, moved, strict=True)]

    @contextmanager
    def active(self, batch: list[AdapterRows]) -> Iterator[None]:
        """Add these adapters to the forwards inside the context."""
        self.batch = batch
        try:
            yield
        finally:
            self.batch = []

    @contextmanager
    def narrow(self, places: Tensor) -> Iterator[None]:
        """Compute only these ``places`` of the flat batch inside the context, in this order."""
        whole = self.batch
        self.batch = [
            AdapterRows(part.adapter, torch.isin(places, part.rows).nonzero()[:, 0])
            for part in whole
        ]
        try:
            yield
        finally:
            self.batch = whole

    @contextmanager
    def checking(self, num_tokens: int) -> Iterator[None]:
        """Check a forward of ``num_tokens`` inside the context: each targeted layer must receive
        the whole flat batch. A layer that receives only some tokens, like an expert, cannot map
        them to sequences. Raises UnsupportedAdapter, as :meth:`read` does for later adapters."""
        seeing: dict[nn.Module, bool] = {}

        def note(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            seeing[module] = bool(inputs) and inputs[0].shape[:-1] == (1, num_tokens)

        layers = [each for each in self.model.modules() if isinstance(each, _LINEAR)]
        handles = [layer.register_forward_pre_hook(note) for layer in layers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        self._seeing = frozenset(layer for layer, sees_all in seeing.items() if sees_all)
        if not self._targets.keys() <= self._seeing:
            raise UnsupportedAdapter("An adapter targets layers that do not see every token")


def _find_linear(model: Any, path: str) -> nn.Linear | LinearLayer:
    try:
        module = model.get_submodule(path)
    except AttributeError as error:
        raise UnsupportedAdapter(f"the model has no layer {path}") from error
    if module is model.get_output_embeddings():  # it sees the sampled rows only
        raise UnsupportedAdapter(f"{path} is the output layer, which is not adapted")
    if not isinstance(module, _LINEAR):
        raise UnsupportedAdapter(f"{path} is a {type(module).__name__}, not a linear layer")
    return module


def _read_folder(folder: Path, dtype: torch.dtype, device: torch.device) -> dict[str, LowRank]:
    """Return the weights by the layer's path in the base model, with the scaling applied."""
    try:
        config = json.loads((folder / CONFIG_FILE).read_text("utf-8"))
        tensors: dict[str, Tensor] = load_file(folder / WEIGHTS_FILE)
    except (OSError, ValueError, SafetensorError) as error:
        raise UnsupportedAdapter(f"cannot be read: {error}") from error
    _refuse_unsupported(config)
    alphas = _Alphas(config)
    parts: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        match = _KEY.fullmatch(key)
        if match is None or tensor.ndim != 2:
            raise UnsupportedAdapter(f"{key} is not a LoRA weight of a linear layer")
        parts.setdefault(match["module"], {})[match["part"]] = tensor
    return {
        path: LowRank(*(x.to(device, dtype) for x in _low_rank(path, pair, config, alphas)))
        for path, pair in parts.items()
    }


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    """Refuse any feature that the adapter switches on and that would be ignored."""
    if config.get("peft_type") != "LORA":
        raise UnsupportedAdapter(f"peft_type {config.get('peft_type')!r} is not supported")
    if config.get("bias", "none") != "none":
        raise UnsupportedAdapter(f"bias {config['bias']!r} is not supported")
    if config.get("init_lora_weights") not in _PLAIN_INITS:
        raise UnsupportedAdapter(
            f"init_lora_weights {config['init_lora_weights']!r} changes the base model's weights; "
            "convert the adapter to a plain one first"
        )
    known = _READ | _WITHOUT_EFFECT | {"init_lora_weights"}
    for option, setting in config.items():
        if option not in known and setting:
            raise UnsupportedAdapter(f"{option} is not supported")


def _low_rank(
    path: str, pair: Mapping[str, Tensor], config: Mapping[str, Any], alphas: "_Alphas"
) -> LowRank:
    if len(pair) < 2:
        raise UnsupportedAdapter(f"{path} has lora_{next(iter(pair))} only")
    down, up = pair["A"], pair["B"]
    rank = down.shape[0]
    if up.shape[1] != rank:
        raise UnsupportedAdapter(f"{path} has ranks {rank} and {up.shape[1]}")
    scaling = alphas.find(path) / (math.sqrt(rank) if config.get("use_rslora") else rank)
    return LowRank(down, up.float() * scaling)


class _Alphas:
    """The alpha of each layer. ``alpha_pattern`` maps regular expressions for the end of a layer's
    path to its alpha. A client may have written them: they have a bounded time together, in which
    other threads run. `re` would hold the interpreter, for hours with some of them."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Raises UnsupportedAdapter."""
        self._late = time.monotonic() + _PATTERN_SECONDS
        patterns = config.get("alpha_pattern") or {}
        try:
            self._default = float(config.get("lora_alpha", _DEFAULT_ALPHA))
            self._by_pattern = [
                (regex.compile(rf"(?:.*\.)?(?:{pattern})$"), float(alpha))
                for pattern, alpha in patterns.items()
            ]
        except (AttributeError, TypeError, ValueError, OverflowError, regex.error) as error:
            raise UnsupportedAdapter(f"lora_alpha or alpha_pattern is invalid: {error}") from error

    def find(self, path: str) -> float:
        """Raises UnsupportedAdapter if the patterns take too long."""
        for pattern, alpha in self._by_pattern:
            left = max(self._late - time.monotonic(), 0.001)
            try:
                if pattern.match(path, timeout=left, concurrent=True):
                    return alpha
            except TimeoutError as error:
                raise UnsupportedAdapter("alpha_pattern takes too long; simplify it") from error
        return self._default
