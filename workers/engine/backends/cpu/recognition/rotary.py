"""Rotary embeddings of heads, inferred from a model's rotary module and the function with which its
attention rotates heads."""

import inspect
import sys
from collections.abc import Container
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

import torch
from torch import Tensor, nn

from workers.engine.backends.base.temperatures import compute_temperatures, get_tuning
from workers.engine.backends.cpu.recognition.parts import Unrecognised

_STATIC_ROTARY = {"default", "linear", "llama3", "proportional", "yarn"}
"""Kinds of rotary positions whose angles depend on the position alone."""
_KIND = ("layer_type", "attention_type")
_PLAIN, _PARTED = "apply_rotary_pos_emb", "apply_rotary_pos_emb_interleave"
_COMPLEX = "apply_rotary_emb"
"""The functions of transformers that rotate heads; the last one by complex numbers."""

_POSITIONS_AT_ONCE = 65536
"""How many positions tables are made for at a time: several copies of them are needed."""

_TRIED_POSITIONS = 3
"""With how many positions it is tried whether heads or positions come first. More than heads."""

Tables = tuple[Tensor, ...]
"""What a rotary module answers: cosines and sines [positions, numbers], or complex numbers."""


class Pairing(IntEnum):
    """Which rotated numbers form a pair, as in kernels/model.h. The last kind is stored like the
    first."""

    HALVES = 0
    NEIGHBOURS = 1
    PARTED_NEIGHBOURS = 2


_MULTIPLES = {Pairing.HALVES: 2, Pairing.NEIGHBOURS: 16, Pairing.PARTED_NEIGHBOURS: 8}


@dataclass(frozen=True, slots=True)
class Rotation:
    """How the first ``dim`` numbers of heads are rotated in pairs."""

    dim: int
    pairing: Pairing

    @classmethod
    @torch.inference_mode()
    def read(cls, attention: nn.Module, head_dim: int, tables: Tables) -> Self | None:
        """Return the rotation by the function that ``attention``'s module uses."""
        last = tuple(table[-1:] for table in tables)
        for width in (head_dim, _width(tables)):
            turned = _turn(attention, torch.eye(width)[:2], last)
            if turned is None:
                continue
            first, second = (row.nonzero().flatten().tolist() for row in turned[0])
            if len(first) != 2 or first[0] != 0:
                return None
            partner = first[1]
            if partner == 1:
                return cls(width, Pairing.NEIGHBOURS)
            if second[:1] == [0]:
                return cls(2 * partner, Pairing.PARTED_NEIGHBOURS)
            return cls(2 * partner, Pairing.HALVES) if 2 * partner <= head_dim else None
        return None

    @torch.inference_mode()
    def factors(
        self, attention: nn.Module, head_dim: int, tables: Tables
    ) -> tuple[Tensor, Tensor] | None:
        """Return what the rotation multiplies the number in a result's own place and its partner
        by, at each position: both [positions, dim], from the rotary module's output. None if the
        rotation does more than multiply."""
        first_row = tuple(table[:1] for table in tables)
        is_whole = _turn(attention, torch.zeros(1, head_dim), first_row) is not None
        place = torch.arange(head_dim if is_whole else self.dim)
        is_even, is_low = place % 2 == 0, place < self.dim // 2
        is_first = is_low if self.pairing is Pairing.HALVES else is_even
        keeps_first = is_even if self.pairing is Pairing.NEIGHBOURS else is_low
        of_first = _turn(attention, is_first.float()[None], tables)
        of_second = _turn(attention, (~is_first).float()[None], tables)
        if of_first is None or of_second is None:
            return None
        of_first, of_second = of_first[:, 0], of_second[:, 0]
        kept = torch.where(keeps_first, of_first, of_second)[:, : self.dim].contiguous()
        crossed = torch.where(keeps_first, of_second, of_first)[:, : self.dim].contiguous()
        return kept, crossed


def _width(tables: Tables) -> int:
    """Return how many numbers of a head the tables rotate."""
    return tables[0].shape[-1] * (2 if tables[0].is_complex() else 1)


def _turn(attention: Any, heads: Tensor, tables: Tables) -> Tensor | None:
    """``heads`` [heads, width] at each position of the tables, [positions, heads, width]."""
    is_parted = getattr(getattr(attention, "config", None), "rope_interleave", False)
    name = _COMPLEX if tables[0].is_complex() else _PARTED if is_parted else _PLAIN
    function = getattr(sys.modules[type(attention).__module__], name, None)
    if function is None:
        return None
    query = heads[None, :, None].expand(1, -1, len(tables[0]), -1)
    takes_one = list(inspect.signature(function).parameters)[1:3] == ["cos", "sin"]

    def turn(query: Tensor, tables: Tables) -> Tensor | None:
        query, given = query.contiguous(), [table[None] for table in tables]
        try:
            turned = (
                function(query, *given) if takes_one else function(query, query.clone(), *given)[0]
            )
        except Exception:  # noqa: BLE001 - it takes heads of another size
            return None
        return turned if turned.shape == query.shape else None

    few, part = tuple(x[:_TRIED_POSITIONS] for x in tables), query[:, :, :_TRIED_POSITIONS]
    if turn(part, few) is not None:
        turned = turn(query, tables)
        return None if turned is None else turned[0].transpose(0, 1)
    if turn(part.transpose(1, 2), few) is None:
        return None
    turned = turn(query.transpose(1, 2), tables)
    return None if turned is None else turned[0]


def _find_kind(attention: Any) -> str | None:
    """Return the kind of a layer, as it says itself, or else as its configuration lists it."""
    kinds = (getattr(attention, name, None) for name in _KIND)
    if kind := next(filter(None, kinds), None):
        return str(kind)
    listed = getattr(getattr(attention, "config", None), "layer_types", None)
    index = getattr(attention, "layer_idx", None)
    return None if listed is None or index is None else str(listed[index])


class Angles:
    """The tables of a rotary module, one for each kind of layer that it knows. ``positionless`` are
    the attention layers that rotate no heads."""

    def __init__(self, rotary: Any, max_len: int, positionless: Container[nn.Module]) -> None:
        self._rotary, self._positionless = rotary, positionless
        self._positions = torch.arange(max_len)[None]
        parameters = inspect.signature(rotary.forward).parameters
        self._has_kinds = "layer_type" in parameters
        self._known: dict[Any, tuple[Rotation, tuple[Tensor, Tensor]]] = {}
        self._temperatures: dict[Any, Tensor] = {}

    def get(
        self, attention: Any, head_dim: int
    ) -> tuple[Rotation | None, tuple[Tensor, Tensor] | None]:
        """Return the rotation of a layer's heads, and its tables; no tables if the layer rotates
        none."""
        kind = _find_kind(attention) if self._has_kinds else None
        if kind not in self._known:
            self._known[kind] = self._read(attention, head_dim, kind)
        rotation, tables = self._known[kind]
        return rotation, None if attention in self._positionless else tables

    def compute_temperatures(self, attention: Any) -> Tensor | None:
        """Return the factors of a layer's queries [positions]; None if it has none. Layers share
        them."""
        key = get_tuning(attention)
        if key is None:
            return None
        if key not in self._temperatures:
            self._temperatures[key] = compute_temperatures(attention, self._positions[0])
        return self._temperatures[key]

    @torch.inference_mode()
    def _read(
        self, attention: Any, head_dim: int, kind: str | None
    ) -> tuple[Rotation, tuple[Tensor, Tensor]]:
        rope_type = getattr(self._rotary, "rope_type", None)
        rope_type = rope_type.get(kind) if isinstance(rope_type, dict) else rope_type
        if rope_type not in _STATIC_ROTARY:
            raise Unrecognised(f"rotary positions are {rope_type}")
        options = {"layer_type": kind} if self._has_kinds else {}
        rotation, parts = None, []
        for positions in torch.split(self._positions, _POSITIONS_AT_ONCE, 1):
            given = self._rotary(torch.empty(0), positions, **options)
            given = given if isinstance(given, tuple) else (given,)
            tables = tuple(x[0] if x.is_complex() else x[0].float() for x in given)
            rotation = rotation or Rotation.read(attention, head_dim, tables)
            if rotation is None or rotation.dim % _MULTIPLES[rotation.pairing]:
                raise Unrecognised("heads are rotated in an unknown way")
            part = rotation.factors(attention, head_dim, tables)
            if part is None:
                raise Unrecognised("heads are rotated in an unknown way")
            parts.append(part)
        assert rotation is not None
        kept, crossed = map(torch.cat, zip(*parts, strict=True))
        return rotation, (kept, crossed)
