"""What a record of an architecture says, and the source that its parts read: a file's metadata, its
tensors' shapes, and the factors of rotary positions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

HEADS, KEY_HEADS = "attention.head_count", "attention.head_count_kv"
"""Metadata with the numbers of heads. Without the second one, each head has its own keys."""
FREQUENCIES = "rope_freqs.weight"
LONG, SHORT = "rope_factors_long.weight", "rope_factors_short.weight"
FACTORS = (FREQUENCIES, LONG, SHORT)
"""Tensors that become part of the configuration."""


class Metadata(Mapping[str, Any]):
    """The metadata below ``prefix``. Some writers store a value for each layer: equal ones are read
    as one."""

    def __init__(self, fields: Mapping[str, Any], file: str, prefix: str) -> None:
        """``file`` appears in error messages."""
        self._fields = fields
        self._file, self._prefix = file, f"{prefix}."

    def __getitem__(self, key: str) -> Any:
        """Raises KeyError, and ValueError for values that differ."""
        name = self._prefix + key
        if name not in self._fields:
            raise KeyError(key)
        value = self._fields[name]
        if not isinstance(value, list):
            return value
        if not value or value != value[:1] * len(value):
            raise ValueError(
                f"{self._file} has {name} for each layer, {value}: only one value for all layers "
                "is read"
            )
        return value[0]

    def get_list(self, key: str, count: int) -> list[Any]:
        """Return the first ``count`` values of a list, or the one value as often. Raises KeyError,
        and ValueError for a list that is too short."""
        name = self._prefix + key
        if name not in self._fields:
            raise KeyError(key)
        value = self._fields[name]
        values = value if isinstance(value, list) else [value] * count
        if len(values) < count:
            raise ValueError(f"{self._file} has {len(values)} values of {name}, not {count}")
        return values[:count]

    def __contains__(self, key: object) -> bool:
        return f"{self._prefix}{key}" in self._fields

    def __iter__(self) -> Iterator[str]:
        names = (name for name in self._fields if name.startswith(self._prefix))
        return (name.removeprefix(self._prefix) for name in names)

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True, slots=True)
class Source:
    """What the configuration is made from."""

    metadata: Metadata
    """Of the model, by key without the architecture in front."""
    tokens: Mapping[str, Any]
    """The metadata below ``tokenizer.ggml``."""
    shapes: Mapping[str, tuple[int, ...]]
    """By the names of the file's tensors."""
    factors: Mapping[str, Tensor]
    """The tensors of :data:`FACTORS` that the file has."""

    @property
    def num_layers(self) -> int:
        """Without the blocks that predict further tokens, which files count as layers. Raises
        KeyError, and ValueError for a number of which the file does not have the last one."""
        metadata = self.metadata
        count = int(metadata["block_count"]) - int(metadata.get("nextn_predict_layers", 0))
        last = f"blk.{count - 1}."
        if not any(name.startswith(last) for name in self.shapes):
            raise ValueError(f"its block_count makes {count} layers, and it has no tensor {last}*")
        return count

    def has(self, tensor: str) -> bool:
        """Return whether any layer has a tensor of this name."""
        return any(name.endswith(f".{tensor}") for name in self.shapes)

    def get_kinds(self, key: str, kinds: Sequence[str]) -> list[str]:
        """Return the kind of each layer by its flag or number in the metadata: the first of
        ``kinds`` where it is 0. Raises KeyError and ValueError."""
        return [kinds[bool(value)] for value in self.metadata.get_list(key, self.num_layers)]


Fields = dict[str, Any]
Edit = Callable[[Sequence[Tensor], Source], Tensor]
"""Makes a weight of its stored parts."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """How one kind of decoder differs from the common form."""

    model_type: str
    rotates_in_part: bool = False
    """Whether rotary positions may turn a part of each head only."""
    epsilons: Mapping[str, str] = field(
        default_factory=lambda: {"attention.layer_norm_rms_epsilon": "rms_norm_eps"}
    )
    """Metadata with the epsilons of norms, and the fields of the config."""
    tensors: Mapping[str, str] = field(default_factory=dict)
    """Names of tensors outside layers that extend or override those of all architectures."""
    layers: str = "model.layers"
    """The list of the layers."""
    layer_tensors: Mapping[str, str] = field(default_factory=dict)
    """The same for tensors of layers."""
    edits: Mapping[str, Edit] = field(default_factory=dict)
    """How weights are made whose names end so; the first that fits."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """Further fields of the config, and the metadata that hold them."""
    shown: Mapping[str, str] = field(default_factory=dict)
    """Settings of the config that are true if any layer has the tensor."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the config that are the same for all files."""
    more: Callable[[Source, Fields], Fields] = lambda source, fields: {}
    """Further fields of the config, from the source and the fields so far."""
    varying: frozenset[str] = frozenset()
    """Metadata that differs from layer to layer, which ``more`` reads."""
    without: frozenset[str] = frozenset()
    """Fields that the config does not have."""
