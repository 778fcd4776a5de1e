"""A model of transformers run as by its own ``generate``: one sequence, with the model's cache.

Nothing here knows an architecture. ``generate`` prepares a sequence, and passes it on where its
decoding loop would begin. The body of that loop runs whenever a step of the engine adds tokens.
"""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import GenerationConfig
from transformers.cache_utils import (
    DummyLayer,
    DynamicIndexedLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from workers.engine.backends.base.lora import Adapters
from workers.engine.compat import get_attention, set_attention, supports_sdpa, update_inputs
from workers.engine.core.model_input import AdapterRows
from workers.engine.exceptions import UnsupportedModel

TRIED_TOKENS = 5


_Place = tuple[nn.Module, str]
"""A module and the name of one of its attributes."""


class Footprint(NamedTuple):
    """The memory that a sequence's cache takes, in bytes."""

    per_token: int
    fixed: int


class FallbackModel:
    """A causal language model without pages: :meth:`begin` makes the state of one sequence."""

    def __init__(self, model: Any, adapters: Adapters, max_len: int) -> None:
        self.model = model
        self.adapters = adapters
        self.max_len = max_len
        model.generation_config = _plain_generation(model.generation_config)
        _set_padding(model.config.get_text_config())
        self._takes_mask = "attention_mask" in inspect.signature(model.forward).parameters
        self._dynamic_ropes = [m for m in model.modules() if _has_dynamic_rope(m)]
        self._own_state: list[_Place] = []
        """Attributes of modules that a forward changes: state that the cache does not hold."""
        self.gives_every_row = True
        """Whether a forward of several tokens has logits for each of them."""
        self.footprint = Footprint(0, 0)
        self.vocab_size = 0

    def begin(self, adapter: str | None = None) -> "GeneratedSequence":
        """Return the state of a sequence without tokens, which uses this adapter."""
        return GeneratedSequence(self, adapter)

    @torch.inference_mode()
    def try_out(self) -> int:
        """Run one forward of ``TRIED_TOKENS`` tokens. Returns the width of the logits; raises
        UnsupportedModel with the model's own words if it cannot generate."""
        before = _attributes(self.model)
        try:
            rows = self.begin().extend([0] * TRIED_TOKENS, every_row=True)
            self._own_state = self._find_state(before)
        except Exception as error:
            raise self._refusal(error) from error
        self.gives_every_row = len(rows) == TRIED_TOKENS
        self.vocab_size = rows.shape[1]
        return self.vocab_size

    def _find_state(self, before: Mapping[_Place, int]) -> list[_Place]:
        """Return the module attributes that were None before a forward and that every forward
        changes. An attribute that only the first forward changes is a constant."""
        changed = _find_changes(self.model, before)
        if not changed:
            return []
        first = [getattr(module, name) for module, name in changed]
        for module, name in changed:
            setattr(module, name, None)
        self.begin().extend([1, 2, 3])
        again = [getattr(module, name) for module, name in changed]
        return [
            place
            for place, old, new in zip(changed, first, again, strict=True)
            if new is None or old.shape != new.shape or not torch.equal(old, new)
        ]

    @torch.inference_mode()
    def measure(self) -> None:
        """Find the ``footprint``. Raises UnsupportedModel."""
        try:
            short, long = (self._count_bytes(n) for n in (TRIED_TOKENS, 3 * TRIED_TOKENS))
        except Exception as error:
            raise self._refusal(error) from error
        per_token = max(0, long - short) // (2 * TRIED_TOKENS)
        self.footprint = Footprint(per_token, max(0, short - per_token * (TRIED_TOKENS + 1)))

    def _refusal(self, error: Exception) -> UnsupportedModel:
        return UnsupportedModel(f"{type(self.model).__name__} does not generate: {error!r}")

    def _count_bytes(self, num_tokens: int) -> int:
        sequence = self.begin()
        sequence.extend([0] * num_tokens)
        sequence.extend([0])
        return sequence.num_bytes

    def prepare(self, ids: Tensor) -> dict[str, Any]:
        """Return what ``generate`` passes to its decoding loop for the prompt ``ids`` [1, tokens]:
        keyword arguments of the model, including the cache."""
        handed: dict[str, Any] = {}

        def decoding_loop(_model: Any, input_ids: Tensor, **given: Any) -> Tensor:
            handed.update(given)
            return input_ids

        # Without a mask, `generate` takes tokens with the id of padding for padding.
        mask = {"attention_mask": torch.ones_like(ids)} if self._takes_mask else {}
        self.model.generate(
            ids,
            **mask,
            custom_generate=decoding_loop,
            max_length=max(self.max_len, ids.shape[1] + 1),
            do_sample=False,
            use_cache=True,
        )
        for name in ("logits_processor", "stopping_criteria", "generation_config"):
            del handed[name]
        return handed

    def call(
        self, inputs: Mapping[str, Any], state: list[Any], adapter: str | None, num_tokens: int
    ) -> Any:
        """Return one forward of the model. ``state`` is what its modules keep of the sequence,
        replaced by what they keep after it; empty before the first."""
        for module in self._dynamic_ropes:
            _forget_length(module)
        for i, (module, name) in enumerate(self._own_state):
            setattr(module, name, state[i] if state else None)
        rows = torch.arange(num_tokens, device=self.model.device)
        with self.adapters.active([AdapterRows(adapter, rows)] if adapter else []):
            outputs = self.model(**inputs, return_dict=True)
        state[:] = [getattr(module, name) for module, name in self._own_state]
        return outputs


class GeneratedSequence:
    """One running sequence: its tokens, and the state that ``generate`` keeps between tokens."""

    def __init__(self, general: FallbackModel, adapter: str | None) -> None:
        self._general = general
        self._adapter = adapter
        self._ids = torch.empty(1, 0, dtype=torch.int64, device=general.model.device)
        self._kwargs: dict[str, Any] = {}
        self._module_state: list[Any] = []

    @property
    def length(self) -> int:
        return self._ids.shape[1]

    @property
    def num_bytes(self) -> int:
        """The memory of its cache."""
        return sum(
            {
                t.data_ptr(): t.nbytes for t in _tensors([self._kwargs, self._module_state], set())
            }.values()
        )

    @property
    def has_module_state(self) -> bool:
        """Whether the model's modules keep something outside the cache."""
        return bool(self._module_state)

    @property
    def keeps_only_keys_and_values(self) -> bool:
        """Whether its cache holds only keys, values and index keys per token, which pages can
        store."""
        cache = self._kwargs.get("past_key_values")
        cache = getattr(cache, "self_attention_cache", cache)
        kinds = {type(layer) for layer in getattr(cache, "layers", ())}
        unknown = kinds - {DynamicLayer, DynamicSlidingWindowLayer, DynamicIndexedLayer, DummyLayer}
        known = all(hasattr(kind, "update_index") for kind in unknown)
        return bool(kinds - {DummyLayer}) and known and not self.has_module_state

    def extend(self, token_ids: list[int], every_row: bool = False) -> Tensor:
        """Append tokens. Returns the logits after the last one [1, vocabulary], or with
        ``every_row`` after each of them [len(token_ids), vocabulary].

        The first call computes its tokens at once, as ``generate`` does with a prompt. Later ones
        go token by token, since recurrent layers continue with one token only.
        """
        new = torch.tensor([token_ids], device=self._ids.device)
        rows = []
        if not self.length:
            at_once = 1 if every_row and not self._general.gives_every_row else len(token_ids)
            begun = self._begin(new[:, :at_once], every_row)
            # A model may append a token of its own; the last row then belongs to that token.
            rows.append(begun if at_once == len(begun) else begun[-1:])
            new = new[:, at_once:]
        rows += [self._decode(token) for token in torch.split(new, 1, dim=1)] if new.numel() else []
        return torch.cat(rows) if every_row else rows[-1][-1:]

    def _begin(self, ids: Tensor, every_row: bool) -> Tensor:
        self._ids = ids
        self._kwargs = self._general.prepare(ids)
        inputs = self._general.model.prepare_inputs_for_generation(
            ids, next_sequence_length=ids.shape[1], is_first_iteration=True, **self._kwargs
        )
        if every_row:
            inputs.pop("logits_to_keep", None)
        return self._run(inputs, ids.shape[1])

    def _decode(self, token: Tensor) -> Tensor:
        self._ids = torch.cat([self._ids, token], dim=1)
        inputs = self._general.model.prepare_inputs_for_generation(
            self._ids, next_sequence_length=1 if self._kwargs["use_cache"] else None, **self._kwargs
        )
        return self._run(inputs, 1)[-1:]

    def _run(self, inputs: dict[str, Any], num_tokens: int) -> Tensor:
        outputs = self._general.call(inputs, self._module_state, self._adapter, num_tokens)
        self._kwargs = update_inputs(self._general.model, outputs, self._kwargs)
        logits: Tensor = outputs.logits[0]
        return logits


def _plain_generation(given: Any) -> Any:
    """Return the special tokens of a checkpoint's generation config, without beams, static caches
    and whatever else it asks of ``generate``."""
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    make: Any = GenerationConfig
    return make(**{name: getattr(given, name, None) for name in names})


def _set_padding(config: Any) -> None:
    """Some models, such as Reformer, pad every input to a multiple of a length, and fail without a
    token for it. Which one makes no difference: it is masked."""
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0


def _tensors(value: Any, seen: set[int]) -> Iterator[Tensor]:
    """Yield the tensors within a cache, whatever it is made of."""
    if id(value) in seen or isinstance(value, nn.Module):
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
        return
    parts: Any = ()
    if isinstance(value, (list, tuple)):
        parts = value
    elif isinstance(value, Mapping):
        parts = value.values()
    elif hasattr(value, "__dict__"):
        parts = vars(value).values()
    for part in parts:
        yield from _tensors(part, seen)


def _attributes(model: nn.Module) -> dict[_Place, int]:
    """Return the identities of module attributes that are a tensor, but neither parameter nor
    buffer, or that are None."""
    return {
        (module, name): id(value)
        for module in model.modules()
        for name, value in vars(module).items()
        if value is None or isinstance(value, Tensor)
    }


def _find_changes(model: nn.Module, before: Mapping[_Place, int]) -> list[_Place]:
    """Return the attributes among these that were None before and now hold a tensor."""
    now = _attributes(model)
    return [
        (module, name)
        for (module, name), value in before.items()
        if value == id(None) and now.get((module, name), value) != value
    ]


def _has_dynamic_rope(module: nn.Module) -> bool:
    return "dynamic" in str(getattr(module, "rope_type", "")) and hasattr(module, "inv_freq")


def _forget_length(module: Any) -> None:
    """Reset a dynamic rotary embedding, which remembers the longest sequence that it has computed.
    Here each sequence keeps its own length."""
    module.max_seq_len_cached = module.original_max_seq_len
    module.inv_freq = module.original_inv_freq


def use_own_attention(model: Any) -> None:
    """Use the attention function that transformers chooses by default."""
    name = "sdpa" if supports_sdpa(model) else "eager"
    try:
        model.set_attn_implementation(name)
    except (ValueError, ImportError):
        name = "eager"
        model.set_attn_implementation(name)
    # Some older models only warn that they cannot change, and use the name only to build the mask.
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if get_attention(config, name) not in ("sdpa", "eager"):
            set_attention(config, name)
