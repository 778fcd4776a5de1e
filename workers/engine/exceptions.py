"""Every error of the engine, under one base.

``code`` is the name of the error in :mod:`completions.contract.error_codes`; the docstring is the
default message.
"""

# ruff: noqa: N818 - the names say what happened, as the interface fixes them

from typing import ClassVar


class EngineError(Exception):
    """The engine failed."""

    code: ClassVar[str] = "worker_error"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (self.__doc__ or "").strip())


class InvalidRequest(EngineError):
    """The request cannot run on this model."""

    code = "invalid_value"


class ContextLengthExceeded(InvalidRequest):
    """The prompt leaves no room for a token in the model's context or in the KV cache."""

    code = "context_length_exceeded"


class EngineOverloaded(EngineError):
    """Too many sequences wait already."""

    code = "server_overloaded"


class NoRoomForAdapter(EngineError):
    """Adapters of running requests take the memory that this one needs."""

    code = "adapters_overloaded"

    def __init__(self, message: str | None = None, size: int = 0) -> None:
        super().__init__(message)
        self.size = size
        """Bytes that the adapter takes."""


class UnsupportedModel(EngineError):
    """This architecture needs something that the attention function does not do."""


class TooLarge(UnsupportedModel):
    """The model does not fit into the memory that is free now."""


class UnsupportedAdapter(EngineError):
    """This LoRA adapter needs something that the engine does not do."""

    code = "unsupported_adapter"


class EngineStopped(EngineError):
    """The engine was stopped."""


class EngineFault(EngineError):
    """The step that ran this request failed."""


class RankLost(EngineError):
    """One of the processes that compute the model together has ended."""


class GrammarError(EngineError):
    """The request's grammar could not be followed."""

    code = "grammar_error"


class ProcessorError(EngineError):
    """The request's custom logit processor raised an exception."""

    code = "processor_error"


class InvalidLogits(EngineError):
    """The logits of this request are not numbers."""

    code = "invalid_logits"


class RequestFault(EngineError):
    """Processing this request failed."""

    code = "internal_error"


class DeadlineExceeded(EngineError):
    """The request's deadline passed before it finished."""

    code = "generation_timeout"


class NeverStarted(DeadlineExceeded):
    """The request's deadline passed before it was its turn."""

    code = "queue_timeout"
