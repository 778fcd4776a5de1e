"""A launched step whose tokens are not known here yet."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from workers.engine.grammar.mask import GrammarMask
from workers.engine.model.runner import ModelInput
from workers.engine.sampling.sampler import SamplerOutput
from workers.engine.scheduling.scheduler import SchedulerOutput

_INVALID = -1


@dataclass(frozen=True, slots=True)
class PendingTokens:
    """Tokens that the device chooses: ``token_ids`` [rows], on the device and on their way here.

    A copied token is -1 if the logits of its row were not finite.
    """

    token_ids: Tensor
    _arriving: Tensor
    _arrival: torch.cuda.Event | None

    @classmethod
    def send(cls, token_ids: Tensor, finite: Tensor) -> Self:
        """Begin to copy tokens from the device, without waiting for it."""
        arriving = torch.where(finite, token_ids, _INVALID).to("cpu", non_blocking=True)
        arrival = None
        if token_ids.device.type == "cuda":
            arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrival.record(torch.cuda.current_stream(token_ids.device))
        return cls(token_ids, arriving, arrival)

    def wait(self) -> SamplerOutput:
        if self._arrival is not None:
            self._arrival.synchronize()
        token_ids = self._arriving.tolist()
        invalid = [row for row, token_id in enumerate(token_ids) if token_id == _INVALID]
        return SamplerOutput(token_ids, invalid, {})


@dataclass(frozen=True, slots=True)
class Flight:
    """A launched step. Its tokens are pending only if the next step may start before it ends."""

    scheduled: SchedulerOutput
    batch: ModelInput
    mask: GrammarMask | None
    tokens: SamplerOutput | PendingTokens

    def land(self) -> SamplerOutput:
        """Return the tokens; wait for pending ones."""
        tokens = self.tokens
        return tokens.wait() if isinstance(tokens, PendingTokens) else tokens
