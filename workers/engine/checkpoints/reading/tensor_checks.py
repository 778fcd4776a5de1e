"""Refuses checkpoints whose files hold tensors that the model does not read, or reads as other
numbers than they stand for. Both would be served as wrong weights."""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from workers.engine.checkpoints.quantized.stored import UnreadableWeightsError, open_tensors
from workers.engine.exceptions import UnsupportedModel

_FLOATS = {"F16", "BF16", "F32", "F64"}
"""Types of numbers, as safetensors names them, that stand for themselves."""
_WHOLE, _PICKLED = "model.safetensors", "pytorch_model.bin"
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")
_LAYER_COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")

_POSITION_TABLES = (
    r"(^|[._])inv_freq$|\brotary_emb\.(cos|sin)_cached$|"
    r"(^|\.)(attn\.embed_positions|embed_positions\.weights)$"
)
_OTHER_MEDIA = (
    r"^(model\.)?(visual|vision_(tower|model|encoder|language_adapter|embed_tokens)|connector|"
    r"multi_modal_projector|mm_projector|audio_(tower|model)|embed_(vision|audio)|"
    r"image_newline)(\.|$)"
)
UNREAD = {
    "tables of positions, which follow from config.json": _POSITION_TABLES,
    "numbers of positions": r"(^|\.)position_ids$",
    "causal masks": r"(^|\.)attn(\.attention)?\.bias$|\.(masked_bias|causal_mask)$",
    "versions of fairseq": r"(^|\.)decoder\.version$",
    "values of texts, which reinforcement learning needs": r"^v_head\.",
    "scales of a quantized KV cache, which Quire does not quantize": r"\b(kv|[qkv])_scale$",
    "multi-token prediction, which drafts tokens": r"(^|\.)mtp(_\w+)?\.",
    "images and sound beside a text model": _OTHER_MEDIA,
}
"""Tensors that a checkpoint may hold although the model does not read them: names by what they
are. Those of transformers' own lists and layers past the last one, if config.json says that they
predict tokens, come on top."""


def refuse_unread(names: Iterable[str], model: Any, path: str | Path) -> None:
    """Raises UnsupportedModel for tensors in the files of ``path`` that ``model`` does not read,
    unless they change nothing."""
    may_be_unread = _find_ignorable(model)
    unread = sorted(name for name in names if not may_be_unread(name))
    if any(map(_is_bias, unread)):
        tensors = open_files(path)
        unread = [name for name in unread if not (_is_bias(name) and _is_zero(tensors.get(name)))]
    if unread:
        others = len(unread) - 1
        more = f" and {others} other tensor{'s' * (others > 1)}" if others else ""
        raise UnsupportedModel(
            f"the checkpoint has {unread[0]}{more}, which no module of {type(model).__name__} "
            "takes: config.json describes another architecture, or leaves out how the checkpoint "
            "is quantized. Fetch it again with all its *.json files"
        )


def refuse_other_numbers(tensors: Mapping[str, Any], model: Any) -> None:
    """Raises UnsupportedModel for a tensor that is stored as integers or in 8-bit floating point,
    where ``model`` reads it as floats. ``tensors`` have a type by :func:`get_stored_type`."""
    other = {name: kind for name, each in tensors.items() if (kind := get_stored_type(each))}
    if not other:
        return
    may_be_unread = _find_ignorable(model)
    whole = _list_integers(model)
    for name, kind in sorted(other.items()):
        if not may_be_unread(name) and not any(_is_same(name, each) for each in whole):
            raise UnsupportedModel(
                f"{name} is stored as {kind} without its scales: the checkpoint is quantized, and "
                "config.json has no quantization_config that explains this tensor. Fetch it again "
                "with all its *.json files, or serve the checkpoint in 16 bits"
            )


def get_stored_type(tensor: Any) -> str | None:
    """Return the type of a stored tensor's numbers if they are none that stand for themselves. None
    for those, and for weights that are composed of several tensors."""
    if isinstance(tensor, torch.Tensor):
        is_plain = tensor.is_floating_point() and tensor.dtype.itemsize > 1
        return None if is_plain else str(tensor.dtype).removeprefix("torch.")
    kind = tensor.get_dtype() if hasattr(tensor, "get_dtype") else None
    return None if kind in _FLOATS else kind


def open_files(path: str | Path) -> Mapping[str, Any]:
    """Return the tensors of the files in a folder that transformers reads, none of them read yet;
    empty if it holds none. Raises UnreadableWeightsError for a file that is cut off."""
    folder = Path(path)
    is_safe = any((folder / f"{_WHOLE}{end}").is_file() for end in ("", ".index.json"))
    pickled = [] if is_safe else _list_pickled_files(folder)
    if not pickled:
        return open_tensors(folder) if any(folder.glob("*.safetensors")) else {}
    tensors: dict[str, Any] = {}
    for file in pickled:
        tensors |= _open_pickled(file)
    return tensors


def _list_pickled_files(folder: Path) -> list[Path]:
    """Files of tensors that torch wrote. Others with their ending hold settings of a training."""
    whole, index = folder / _PICKLED, folder / f"{_PICKLED}.index.json"
    if whole.is_file():
        return [whole]
    if not index.is_file():
        return []
    names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
    return [folder / name for name in sorted(names)]


def _open_pickled(file: Path) -> dict[str, Any]:
    """Return the tensors of a file: mapped, or without values if torch before 1.6 wrote it."""
    try:
        with file.open("rb") as opened:
            is_mapped = opened.read(2) == b"PK"
        options: dict[str, Any] = {"mmap": True} if is_mapped else {"map_location": "meta"}
        tensors: dict[str, Any] = torch.load(file, weights_only=True, **options)
        return dict(tensors)
    except Exception as error:
        raise UnreadableWeightsError(
            f"{file.name} is not a whole file of tensors: fetch it again ({error})"
        ) from error


def _is_bias(name: str) -> bool:
    return name.endswith(".bias")


def _is_zero(tensor: Any) -> bool:
    """Return whether all numbers of a tensor in a file are zero, as in the biases that AutoGPTQ
    adds to layers without one."""
    if tensor is None or getattr(tensor, "is_meta", False):
        return False
    return not bool(tensor[...].any())


def _find_ignorable(model: Any) -> Any:
    """Return whether a tensor of this name may be unread."""
    listed: Collection[str] = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()
    pattern = re.compile("|".join(f"(?:{each})" for each in (*UNREAD.values(), *listed)))
    config = model.config.get_text_config()
    layers = getattr(config, "num_hidden_layers", None)
    more = max(getattr(config, name, None) or 0 for name in _LAYER_COUNTS)  # of several names

    def may_be_unread(name: str) -> bool:
        layer = _LAYER.search(name)
        if layers and layer is not None and layers <= int(layer[1]) < layers + more:
            return True
        return pattern.search(name) is not None

    return may_be_unread


def _list_integers(model: Any) -> list[str]:
    """Return the names of a model's tensors of integers."""
    tensors = {**model.state_dict(), **dict(model.named_buffers())}
    return [name for name, each in tensors.items() if not each.is_floating_point()]


def _is_same(stored: str, name: str) -> bool:
    """Return whether a name in a file may be that of a tensor in a model: modules may be renamed
    when they are read, tensors of integers are not."""
    last = stored.rpartition(".")[2]
    if last in ("weight", "bias"):
        return stored == name
    return last == name.rpartition(".")[2]
