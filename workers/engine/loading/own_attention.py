"""Compares a model's forward over pages with the model's own attention, over a few tokens."""

import inspect
import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from workers.engine.config import EngineConfig
from workers.engine.exceptions import UnsupportedModel
from workers.engine.loading.trial import NOISES, TOLERANCE, Batches, distance
from workers.engine.model.attention_backend import AttentionBackend
from workers.engine.model.kv_cache import LayerShape
from workers.engine.model.paged import PagedModel
from workers.engine.ranks.group import Ranks

_CHECKED_PIECES = (11, 12, 1)
"""The chunk sizes of the model's own check: a first chunk, a second one, and a single token."""

_TOLERANCE_ROUNDED = 0.2
"""``TOLERANCE`` for 8-bit activations: a difference in the last bit may round to another
byte, as in 7 % of random models."""

_MOST_NOISE = 0.5


class OwnAttention:
    """A model's logits for a few tokens with its own attention: a reference for its forwards, which
    checks that its weights are read and packed correctly."""

    @torch.inference_mode()
    def __init__(
        self,
        model: Any,
        backend: AttentionBackend,
        config: EngineConfig,
        ranks: Ranks | None = None,
    ) -> None:
        self._model, self._backend, self._ranks = model, backend, ranks
        self._block_size = config.block_size
        self._tolerance = _TOLERANCE_ROUNDED if config.is_rounded else TOLERANCE[model.dtype]
        self.vocab_size: int = model.get_output_embeddings().out_features
        tokens = torch.arange(sum(_CHECKED_PIECES), device=model.device)
        self._tokens = (tokens * 7919 + 11) % self.vocab_size
        self._logits = self._own_logits("eager")

    def compare(self, paged: PagedModel, shapes: dict[nn.Module, LayerShape]) -> None:
        """Raises UnsupportedModel for a forward that fails, or is further off than rounding
        explains: on all ranks, if on one."""
        name = type(self._model).__name__
        run = partial(self._run, Batches(paged, self._backend, self._block_size, shapes))
        if self._ranks is not None and (complaint := self._ranks.try_alone(run)) is not None:
            raise UnsupportedModel(f"{name} does not run over pages: {complaint}")
        try:
            actual = run()
        except torch.OutOfMemoryError:  # other ways need as much
            raise
        except Exception as fault:
            if self._ranks is not None:  # the others have not finished this forward
                raise
            raise UnsupportedModel(f"{name} does not run over pages: {fault!r}") from fault
        error = self._largest(distance(actual, self._logits))
        allowed = self._tolerance
        if allowed <= error < math.inf and self._model.dtype != torch.float32:
            noise = self._largest(distance(self._own_logits("sdpa"), self._logits))
            allowed = min(NOISES * noise, _MOST_NOISE)
        if not error < allowed:
            raise UnsupportedModel(
                f"{name} over pages differs from its own attention by {error:.1%}"
            )

    @torch.inference_mode()
    def _run(self, batches: Batches) -> Tensor:
        first, second, _ = _CHECKED_PIECES
        length = len(self._tokens)
        return batches.run([self._tokens.tolist()], [length - 1], [max(first, second)])

    def _largest(self, error: float) -> float:
        """The largest of the ranks' errors, infinite for one that is not a number: a forward of all
        ranks may depend on it."""
        error = math.inf if math.isnan(error) else error
        return error if self._ranks is None else self._ranks.largest(error)

    @torch.inference_mode()
    def _own_logits(self, attention: str) -> Tensor:
        model, ids = self._model, self._tokens[None]
        # Without explicit positions, a model may count differently, as RoBERTa does.
        takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        positions = {"position_ids": torch.arange(len(ids[0]), device=ids.device)[None]}
        positions = positions if takes_positions else {}
        try:
            model.set_attn_implementation(attention)
            logits: Tensor = model(input_ids=ids, use_cache=False, **positions).logits[0]
        except Exception as error:
            name = type(model).__name__
            raise UnsupportedModel(f"{name} cannot be checked: {error!r}") from error
        finally:
            model.set_attn_implementation(self._backend.attention)
        return logits.float()
