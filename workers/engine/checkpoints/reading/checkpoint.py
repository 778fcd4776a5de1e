"""Loads a checkpoint from a folder or the hub as a transformers model, or refuses it clearly."""

import copy
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import GenerationConfig

from workers.engine.backends.base.gpu_memory import refuse_too_large
from workers.engine.backends.base.host_memory import available_memory
from workers.engine.backends.cpu.layers.packed_linear import get_bytes_per_weight
from workers.engine.backends.parallel.group import Ranks
from workers.engine.backends.parallel.sharding import Sharding, plan_sharding
from workers.engine.checkpoints.quantized.formats import Format, find_format, remove_format
from workers.engine.checkpoints.quantized.stored import (
    UnreadableWeightsError,
    divisible,
    open_tensors,
)
from workers.engine.checkpoints.reading.model_class import model_class
from workers.engine.checkpoints.reading.model_folder import explain, read_config, read_tokenizer
from workers.engine.checkpoints.reading.packing import PackedConfig
from workers.engine.checkpoints.reading.tensor_checks import (
    get_stored_type,
    open_files,
    refuse_other_numbers,
    refuse_unread,
)
from workers.engine.exceptions import TooLarge, UnsupportedModel

logger = logging.getLogger(__name__)

_CPU = torch.device("cpu")
_FAULTS_OF_TRANSFORMERS = (OSError, ValueError, KeyError, ImportError, AttributeError, RuntimeError)
"""What its calls raise for a model that it cannot make or read."""
_FAULTS_OF_FILES = (OSError, ValueError)
"""What reading files ourselves raises for those that are damaged or missing. Anything else is a
fault of ours, and is not reported as one of the model."""
_NAMED = 5
"""How many missing tensors a refusal lists."""


def read_model(
    path: str | Path,
    dtype: torch.dtype | str,
    attention: str,
    device: torch.device = _CPU,
    packed: str | None = None,
    ranks: Ranks | None = None,
) -> Any:
    """Read a model with this attention function, or with its own if it supports no other. It is
    read into main memory, or straight onto ``device`` if accelerate is installed.

    With ``packed``, ``int8`` or ``int4``, linear layers are packed for the CPU when they are read.
    With ``ranks``, each of them reads its own part.

    Raises UnsupportedModel for a checkpoint that lacks tensors or has some that nothing reads, that
    is quantized in a way that nothing here can read, that does not fit into memory once its weights
    have ``dtype``, or whose architecture transformers cannot run as a causal model.
    """
    config = read_config(path)
    model_class(config)
    form = find_format(config, path)
    if device.type == "cuda":
        _refuse_too_large_for(device, config, dtype, ranks.size if ranks else 1)
    sharding = None if ranks is None else _sharding(config, form, ranks)
    if config.model_type == "falcon":
        from workers.engine.checkpoints.reading.falcon import (
            register_falcon,  # reading it takes 0.1 s
        )

        register_falcon(attention)
    options: dict[str, Any] = {
        "dtype": dtype,
        "output_loading_info": True,
        "ignore_mismatched_sizes": True,  # refused below, by name
    }
    if sharding is not None:
        options["distributed_config"] = sharding.config
    elif device.type != "cpu" and form is None and find_spec("accelerate") is not None:
        options["device_map"] = {"": device}
    if packed is not None:
        options["quantization_config"] = PackedConfig(packed)
    if form is not None and form.is_read_here:
        source = _read_composed(
            path, config, form, options, device, is_divided=sharding is not None
        )
    else:
        if form is None:
            _refuse_quantized(path, config)
        source = partial(_read_unquantized, path, config)
    with _explaining(_FAULTS_OF_TRANSFORMERS, config, form):
        model, info = _read_with(attention, source, options, config.model_type)
    _refuse_incomplete(info)
    refuse_unread(info["unexpected_keys"], model, path)
    if sharding is not None:
        sharding.settle(model)
    return model


def check_servable(path: str | Path) -> None:
    """Check what can be checked without reading the weights. Raises UnsupportedModel for a folder
    whose model, tokenizer or quantization no worker can serve."""
    config = read_config(path)
    model_class(config)
    form = find_format(config, path)
    read_tokenizer(path)
    if form is None:
        _refuse_quantized(path, config)
    _skeleton(copy.deepcopy(config))


@contextmanager
def _explaining(
    faults: tuple[type[Exception], ...], config: Any, form: Format | None = None
) -> Iterator[None]:
    """Raise UnsupportedModel with the reason for one of ``faults`` inside the context."""
    try:
        yield
    except faults as error:
        how = f", quantized by {str(form)!r}," if form else ""
        raise UnsupportedModel(
            f"{config.model_type}{how} cannot be read as a causal language model: "
            f"{explain(error, config)}"
        ) from error


def _read_with(
    attention: str, source: Callable[..., Any], options: Mapping[str, Any], model_type: str
) -> Any:
    """Return what ``source`` reads, with this attention function if the architecture takes one."""
    try:
        return source(attn_implementation=attention, **options)
    except UnreadableWeightsError:
        raise
    except (ValueError, KeyError) as error:  # an architecture without the attention interface
        logger.info("%s does not take an attention function: %s", model_type, error)
        return source(**options)


def _read_unquantized(path: str | Path, config: Any, **options: Any) -> Any:
    """Return what transformers reads. Raises UnreadableWeightsError, with the name of a file that
    is cut off."""
    try:
        read: Callable[..., Any] = model_class(config).from_pretrained
        return read(path, config=copy.deepcopy(config), **options)
    except SafetensorError as error:  # does not name it
        open_tensors(path)
        raise UnreadableWeightsError(str(error)) from error


def _refuse_quantized(path: str | Path, config: Any) -> None:
    """Raises UnsupportedModel for a checkpoint that is said not to be quantized, but is."""
    with _explaining(_FAULTS_OF_FILES, config):
        tensors = open_files(path)
        if any(map(get_stored_type, tensors.values())):  # a skeleton takes time
            refuse_other_numbers(tensors, _skeleton(config))


def _sharding(config: Any, form: Format | None, ranks: Ranks) -> Sharding:
    """Return how ``ranks`` read a model. Raises UnsupportedModel."""
    if form is not None and not form.is_read_here:
        raise UnsupportedModel(
            f"{config.model_type}, quantized by {str(form)!r}, cannot be split: set "
            "tensor_parallel_size = 1, or give a checkpoint in 16 bits"
        )
    config = copy.deepcopy(config)
    remove_format(config)
    return plan_sharding(_skeleton(config), ranks)


def _skeleton(config: Any, form: Format | None = None) -> Any:
    """Return the model without weights. Raises UnsupportedModel."""
    with _explaining(_FAULTS_OF_TRANSFORMERS, config, form), torch.device("meta"):
        make: Callable[[Any], Any] = model_class(config).from_config
        return make(config)


def _refuse_too_large_for(
    device: torch.device, config: Any, dtype: torch.dtype | str, ranks: int
) -> None:
    """Raises UnsupportedModel for weights whose part for each of ``ranks`` GPUs exceeds the free
    memory of this one."""
    try:
        needed, dtype = weight_bytes(config, dtype)
    except Exception as error:  # noqa: BLE001 - reading it will say what is wrong
        logger.info("the size of the weights is not known beforehand: %r", error)
        return
    name = str(dtype).removeprefix("torch.")
    part = f", divided by {ranks}," if ranks > 1 else ""
    refuse_too_large(needed // ranks, f"the weights in {name}{part}", device)


def weight_bytes(config: Any, dtype: torch.dtype | str) -> tuple[int, torch.dtype]:
    """Return the bytes of a model's weights on a GPU, and their dtype: ``dtype``, or that of the
    configuration if ``dtype`` is a string."""
    config = copy.deepcopy(config)
    remove_format(config)
    skeleton = _skeleton(config)
    dtype = (skeleton.config.dtype or torch.bfloat16) if isinstance(dtype, str) else dtype
    return sum(each.numel() for each in skeleton.parameters()) * dtype.itemsize, dtype


def _read_composed(
    path: str | Path,
    config: Any,
    form: Format,
    options: Mapping[str, Any],
    device: torch.device,
    *,
    is_divided: bool,
) -> Callable[..., Any]:
    """Return a function like ``from_pretrained``, for weights that are composed as they are read,
    or only parts of which are kept. ``options`` are those that it will be called with."""
    remove_format(config)
    skeleton = _skeleton(config, form)
    dtype, packed = options["dtype"], options.get("quantization_config")
    if dtype == "auto":
        dtype = skeleton.config.dtype or torch.bfloat16
    if device.type == "cpu" or not is_divided:  # else each weight goes straight to its GPU
        _check_size(skeleton, form, dtype, packed.dtype if packed else None)
    with _explaining(_FAULTS_OF_FILES, config, form):
        weights = form.weights(path, torch.float32 if packed else dtype)
        refuse_other_numbers(weights, skeleton)
    weights = divisible(weights) if is_divided else weights

    def read(**options: Any) -> Any:
        model, info = type(skeleton).from_pretrained(
            None, config=skeleton.config, state_dict=dict(weights), **{**options, "dtype": dtype}
        )
        with suppress(OSError):  # few quantized checkpoints lack it
            model.generation_config = GenerationConfig.from_pretrained(path)
        return model, info

    return read


def _check_size(skeleton: Any, form: Format, dtype: torch.dtype, packed: str | None) -> None:
    """Composed weights take more memory than their files. Raises TooLarge."""
    size = _size(skeleton, dtype, packed)
    stored = f"stored as {form}, take {size / 2**30:.2f} GiB of memory in {packed or dtype}"
    stored = stored.replace("torch.", "")
    available = available_memory()
    if available is not None and size > available:
        raise TooLarge(f"its weights, {stored}, and {available / 2**30:.2f} GiB are free")
    logger.info("the weights, %s", stored)


def _size(skeleton: Any, dtype: torch.dtype, packed: str | None) -> float:
    """Return bytes of the weights, some of which may be packed."""
    total = float(sum(each.numel() for each in skeleton.parameters()) * dtype.itemsize)
    if packed is None:
        return total
    head = skeleton.get_output_embeddings()
    for module in skeleton.modules():
        if type(module) is torch.nn.Linear:
            bytes_each = get_bytes_per_weight(packed, module is head)
            is_tied = module is head and skeleton.config.tie_word_embeddings
            total += module.weight.numel() * (bytes_each - (0 if is_tied else dtype.itemsize))
    return total


def _refuse_incomplete(info: Mapping[str, Any]) -> None:
    """Tensors that the files lack would be filled at random."""
    missing = sorted(info["missing_keys"])
    if missing:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise UnsupportedModel(
            f"The checkpoint lacks {', '.join(missing[:_NAMED])}{more}: fetch or convert it again"
        )
    if wrong := sorted(info.get("mismatched_keys") or ()):
        name, stored, expected = wrong[0]
        raise UnsupportedModel(
            f"{name} has the shape {list(stored)} in the checkpoint and {list(expected)} by its "
            "config.json: fetch both again"
        )
