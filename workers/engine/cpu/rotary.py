"""Rotary embeddings of heads, inferred from a model's rotary module and the function with which its
attention rotates heads."""

import inspect
import sys
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from workers.engine.cpu.parts import Unrecognised

_STATIC_ROTARY = {"default", "linear", "llama3", "yarn"}
"""Kinds of rotary positions whose angles depend on the position alone."""
_KIND = ("layer_type", "attention_type")


@dataclass(frozen=True, slots=True)
class Rotation:
    """How heads are rotated: the first ``dim`` numbers in pairs, each with the number ``dim / 2``
    places away or, if ``interleaved``, with its neighbour."""

    dim: int
    interleaved: bool

    @classmethod
    @torch.inference_mode()
    def read(cls, attention: nn.Module, head_dim: int, cosine: Tensor, sine: Tensor) -> Self | None:
        """The rotation by the function that ``attention``'s module uses."""
        for width in (head_dim, cosine.shape[-1]):
            turned = _turn(attention, torch.eye(width)[:1], cosine[-1:], sine[-1:])
            if turned is None:
                continue
            places = turned[0, 0].nonzero().flatten().tolist()
            if len(places) != 2 or places[0] != 0:
                return None
            partner = places[1]
            if partner == 1:
                return cls(width, True)
            return cls(2 * partner, False) if 2 * partner <= head_dim else None
        return None

    @torch.inference_mode()
    def tables(
        self, attention: nn.Module, head_dim: int, cosine: Tensor, sine: Tensor
    ) -> tuple[Tensor, Tensor] | None:
        """The factors of a number and of its partner at each position, both [positions, dim], from
        the rotary module's output. None if the rotation does more than multiply."""
        width = (
            head_dim
            if _turn(attention, torch.zeros(1, head_dim), cosine[:1], sine[:1]) is not None
            else self.dim
        )
        place = torch.arange(width)
        is_first = place % 2 == 0 if self.interleaved else place < self.dim // 2
        first, second = is_first.float(), (~is_first).float()
        of_first = _turn(attention, first[None], cosine, sine)
        of_second = _turn(attention, second[None], cosine, sine)
        if of_first is None or of_second is None:
            return None
        of_first, of_second = of_first[:, 0], of_second[:, 0]
        kept = torch.where(is_first, of_first, of_second)[:, : self.dim].contiguous()
        crossed = torch.where(is_first, of_second, of_first)[:, : self.dim].contiguous()
        return kept, crossed


def _turn(attention: nn.Module, heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor | None:
    """``heads`` [heads, width] at each position of the tables, [positions, heads, width]."""
    function = getattr(sys.modules[type(attention).__module__], "apply_rotary_pos_emb", None)
    if function is None:
        return None
    query = heads[None, :, None].expand(1, -1, len(cosine), -1).contiguous()
    try:
        turned, _ = function(query, query.clone(), cosine[None], sine[None])
    except Exception:  # noqa: BLE001 - it takes heads of another size
        return None
    return turned[0].transpose(0, 1) if turned.shape == query.shape else None


class Angles:
    """The tables of a rotary module, one for each kind of layer that it knows."""

    def __init__(self, rotary: Any, max_len: int) -> None:
        self._rotary = rotary
        self._positions = torch.arange(max_len)[None]
        self._max_len = max_len
        parameters = inspect.signature(rotary.forward).parameters
        self._has_kinds = "layer_type" in parameters
        self._known: dict[Any, tuple[Rotation, tuple[Tensor, Tensor]]] = {}

    def of(
        self, attention: Any, head_dim: int
    ) -> tuple[Rotation | None, tuple[Tensor, Tensor] | None]:
        """The rotation of a layer's heads, and its tables; no tables if the layer rotates none."""
        kinds = (getattr(attention, name, None) for name in _KIND)
        kind = next(filter(None, kinds), None) if self._has_kinds else None
        if kind not in self._known:
            self._known[kind] = self._read(attention, head_dim, kind)
        rotation, tables = self._known[kind]
        return rotation, tables if getattr(attention, "use_rope", True) else None

    @torch.inference_mode()
    def _read(
        self, attention: Any, head_dim: int, kind: str | None
    ) -> tuple[Rotation, tuple[Tensor, Tensor]]:
        rope_type = getattr(self._rotary, "rope_type", None)
        rope_type = rope_type.get(kind) if isinstance(rope_type, dict) else rope_type
        length = getattr(self._rotary, "original_max_seq_len", 0)
        is_static = rope_type in _STATIC_ROTARY
        is_short = rope_type == "longrope" and self._max_len <= length
        if not (is_static or is_short):
            raise Unrecognised(f"rotary positions are {rope_type}")
        options = {"layer_type": kind} if self._has_kinds else {}
        cosine, sine = self._rotary(torch.empty(0), self._positions, **options)
        cosine, sine = cosine[0].float(), sine[0].float()
        rotation = Rotation.read(attention, head_dim, cosine, sine)
        if rotation is None or rotation.dim % 2 or (rotation.interleaved and rotation.dim % 16):
            raise Unrecognised("heads are rotated in an unknown way")
        tables = rotation.tables(attention, head_dim, cosine, sine)
        if tables is None:
            raise Unrecognised("heads are rotated in an unknown way")
        return rotation, tables
