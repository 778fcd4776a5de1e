"""Compares a model's forward over pages with the model's own attention, over a few tokens."""

import inspect
import math
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from workers.engine.backends.base.paged import PagedModel
from workers.engine.backends.base.recorder import finding_routed_modules
from workers.engine.backends.parallel.group import Ranks
from workers.engine.checkpoints.parity.trial import NOISES, TOLERANCE, Batches, distance, loss
from workers.engine.config import EngineConfig
from workers.engine.core.attention_backend import AttentionBackend
from workers.engine.core.layer_shape import LayerShape
from workers.engine.exceptions import UnsupportedModel

_CHECKED_PIECES = (11, 12, 1)
"""The chunk sizes of the model's own check: a first chunk, a second one, and a single token."""

_PASSAGE = (
    "A lighthouse keeper's work was mostly waiting. In the evening he climbed the stairs with a "
    "can of oil, trimmed the wicks, wound the clockwork that turned the lens, and lit the lamp a "
    "few minutes before sunset. Then he sat in the small room below the light and listened. If the "
    "weather was clear he had nothing to do until midnight, when the clockwork had to be wound "
    "again. If there was fog he fired a gun every quarter of an hour, or, in later years, started "
    "the engine that blew the horn."
)
_PASSAGE_TOKENS = 96
_MOST_LOSS = 0.1
"""Nats per token of the passage that two correct forwards with 8-bit activations may differ by: a
difference in the last bit may round to another byte. Measured: 0.01 for SmolLM2 135M in int8 and
int4, at most 0.006 for random models of seven families; scores scaled by 1.3 lose 0.11."""

_MOST_NOISE = 0.5
_DRAWS = 3
"""How many times a mixture of experts is tried, each time with other tokens."""


def passage(tokenizer: Any, max_len: int) -> list[int]:
    """Return the tokens of a short English text, at most ``max_len`` of them."""
    ids: list[int] = tokenizer.encode(_PASSAGE, add_special_tokens=False)
    return ids[: min(max_len, _PASSAGE_TOKENS)]


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
        text: Sequence[int] = (),
    ) -> None:
        """``text`` are the tokens by which forwards with rounded activations are compared."""
        self._model, self._backend, self._ranks = model, backend, ranks
        self._block_size = config.block_size
        self._dtype = config.dtype
        self._text = list(text) if config.is_rounded else []
        self.vocab_size: int = model.get_output_embeddings().out_features
        with finding_routed_modules(model) as routed:
            self._logits = self._own_logits("eager", draw=0)
        has_routers = any(isinstance(getattr(x, "top_k", None), int) for x in model.modules())
        self._draws = _DRAWS if routed or has_routers else 1

    def compare(self, paged: PagedModel, shapes: dict[nn.Module, LayerShape]) -> None:
        """Raises UnsupportedModel for a forward that fails, or is further off than rounding
        explains: on all ranks, if on one.

        Rounding alone may send a token to another expert. So a mixture that fails is tried with
        other tokens: a wrong forward fails with all of them."""
        error = math.inf
        for draw in range(self._draws):
            expected = self._logits if draw == 0 else self._own_logits("eager", draw)
            actual = self._forward(paged, shapes, draw)
            if self._text:
                error = self._largest(loss(actual, expected))
                allowed = _MOST_LOSS
            else:
                error = self._largest(distance(actual, expected))
                allowed = self._measure_allowance(error, expected, draw)
            if error < allowed:
                return
        where = f"{type(self._model).__name__} {'over pages' if paged.native is None else 'in C'}"
        if self._text:
            raise UnsupportedModel(
                f"{where} loses {error:.2g} nats per token of a text against its own attention in "
                f"{self._dtype}, more than the {_MOST_LOSS} that rounding explains"
            )
        raise UnsupportedModel(f"{where} differs from its own attention by {error:.1%}")

    def _measure_allowance(self, error: float, expected: Tensor, draw: int) -> float:
        """Return the error that rounding explains. If it is less than ``error``, this rounding is
        measured between two attentions of the model's own, as far as it has two."""
        allowed = TOLERANCE[self._model.dtype]
        if allowed <= error < math.inf and self._model.dtype != torch.float32:
            with suppress(UnsupportedModel):
                noise = self._largest(distance(self._own_logits("sdpa", draw), expected))
                allowed = max(allowed, min(NOISES * noise, _MOST_NOISE))
        return allowed

    def _forward(self, paged: PagedModel, shapes: dict[nn.Module, LayerShape], draw: int) -> Tensor:
        """Return the logits over pages. Raises UnsupportedModel."""
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
        tokens = self._tokens(draw)
        chunk = -(-len(tokens) // 2) if self._text else max(_CHECKED_PIECES)
        return batches.run([tokens.tolist()], [len(tokens) - 1], [chunk])

    def _tokens(self, draw: int) -> Tensor:
        if self._text:  # each draw begins elsewhere
            start = draw * len(self._text) // _DRAWS
            return torch.tensor(self._text[start:] + self._text[:start], device=self._model.device)
        count = sum(_CHECKED_PIECES)
        places = torch.arange(draw * count, (draw + 1) * count, device=self._model.device)
        return (places * 7919 + 11) % self.vocab_size

    def _largest(self, error: float) -> float:
        """Return the largest of the ranks' errors, infinite for one that is not a number: a forward
        of all ranks may depend on it."""
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
