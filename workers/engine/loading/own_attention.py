"""Compares a model's forward over pages with the model's own attention, over a few tokens."""

import inspect
import math
from contextlib import suppress
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
from workers.engine.model.recorder import finding_routed_modules
from workers.engine.ranks.group import Ranks

_CHECKED_PIECES = (11, 12, 1)
"""The chunk sizes of the model's own check: a first chunk, a second one, and a single token."""

_TOLERANCE_ROUNDED = 0.2
"""``TOLERANCE`` for 8-bit activations: a difference in the last bit may round to another
byte, as in 7 % of random models."""

_MOST_NOISE = 0.5
_DRAWS = 3
"""How many times a mixture of experts is tried, each time with other tokens."""


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
        with finding_routed_modules(model) as routed:
            self._logits = self._own_logits("eager", draw=0)
        self._draws = _DRAWS if routed else 1

    def compare(self, paged: PagedModel, shapes: dict[nn.Module, LayerShape]) -> None:
        """Raises UnsupportedModel for a forward that fails, or is further off than rounding
        explains: on all ranks, if on one.

        Rounding alone may send a token to another expert. So a mixture that fails is tried with
        other tokens: a wrong forward fails with all of them."""
        error = math.inf
        for draw in range(self._draws):
            expected = self._logits if draw == 0 else self._own_logits("eager", draw)
            error = self._largest(distance(self._forward(paged, shapes, draw), expected))
            if error < self._allowed(error, expected, draw):
                return
        raise UnsupportedModel(
            f"{type(self._model).__name__} over pages differs from its own attention by {error:.1%}"
        )

    def _allowed(self, error: float, expected: Tensor, draw: int) -> float:
        """The error that rounding explains. If it is less than ``error``, this rounding is measured
        between two attentions of the model's own, as far as it has two."""
        allowed = self._tolerance
        if allowed <= error < math.inf and self._model.dtype != torch.float32:
            with suppress(UnsupportedModel):
                noise = self._largest(distance(self._own_logits("sdpa", draw), expected))
                allowed = max(allowed, min(NOISES * noise, _MOST_NOISE))
        return allowed

    def _forward(self, paged: PagedModel, shapes: dict[nn.Module, LayerShape], draw: int) -> Tensor:
        """The logits over pages. Raises UnsupportedModel."""
        name = type(self._model).__name__
        batches = Batches(paged, self._backend, self._block_size, shapes)
        run = partial(self._run, batches, draw)
        if self._ranks is not None and (complaint := self._ranks.try_alone(run)) is not None:
            raise UnsupportedModel(f"{name} does not run over pages: {complaint}")
        try:
            return run()
        except torch.OutOfMemoryError:  # other ways need as much
            raise
        except Exception as fault:
            if self._ranks is not None:  # the others have not finished this forward
                raise
            raise UnsupportedModel(f"{name} does not run over pages: {fault!r}") from fault

    @torch.inference_mode()
    def _run(self, batches: Batches, draw: int) -> Tensor:
        first, second, _ = _CHECKED_PIECES
        tokens = self._tokens(draw)
        return batches.run([tokens.tolist()], [len(tokens) - 1], [max(first, second)])

    def _tokens(self, draw: int) -> Tensor:
        count = sum(_CHECKED_PIECES)
        places = torch.arange(draw * count, (draw + 1) * count, device=self._model.device)
        return (places * 7919 + 11) % self.vocab_size

    def _largest(self, error: float) -> float:
        """The largest of the ranks' errors, infinite for one that is not a number: a forward of all
        ranks may depend on it."""
        error = math.inf if math.isnan(error) else error
        return error if self._ranks is None else self._ranks.largest(error)

    @torch.inference_mode()
    def _own_logits(self, attention: str, draw: int) -> Tensor:
        model, ids = self._model, self._tokens(draw)[None]
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
