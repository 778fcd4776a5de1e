"""Logits processors that operators register and requests choose by name. Code never comes with a
request.

A name stands for ``module:attribute`` of a :data:`Factory`. It makes one processor per choice from
the request's ``custom_params``, and refuses what it cannot use with a ValueError whose message the
client reads. The processor is called before each token, after the penalties and ``logit_bias`` and
before ``min_tokens`` and the grammar. Its result must depend on its arguments alone, so that a run
that continues on another worker produces the same tokens.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, cast

import torch
from tokenizers import Tokenizer
from torch import Tensor

from workers.engine.core.sequence import Sequence
from workers.engine.core.sequence_parts import Processor
from workers.engine.exceptions import EngineError, InvalidRequest, ProcessorError
from workers.engine.sampling.logits_processors import LogitsProcessor, PlacedRow


@dataclass(frozen=True, slots=True)
class ChoiceContext:
    """What a processor may know about its model and its choice."""

    tokenizer: Tokenizer
    vocab_size: int
    eos_token_ids: frozenset[int]
    prompt_len: int


class CustomProcessor(Protocol):
    def __call__(self, token_ids: Rows[int], logits: Tensor) -> None:
        """Change the choice's float32 ``logits`` [vocabulary] in place. ``token_ids``, the prompt
        and output so far, are a copy."""


Factory = Callable[[Mapping[str, Any], ChoiceContext], CustomProcessor]


def load_processors(paths: Mapping[str, str]) -> dict[str, Factory]:
    """Return the factories of registered names. Raises ValueError for one that cannot be
    imported."""
    return {name: _factory(name, path) for name, path in paths.items()}


def _factory(name: str, path: str) -> Factory:
    module, _, attribute = path.partition(":")
    try:
        factory = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"logit processor {name!r}: cannot load {path!r}: {error}") from error
    if not callable(factory):
        raise ValueError(f"logit processor {name!r}: {path!r} cannot be called")
    return cast("Factory", factory)


class CustomProcessors(LogitsProcessor):
    """Runs the processors of a step's rows; ``faults`` are the rows whose processor failed."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, Sequence, Processor]] = []
        self.faults: dict[int, EngineError] = {}

    def set_rows(self, rows: Rows[PlacedRow]) -> None:
        self._rows = [
            (row, seq, seq.rules.processor)
            for row, (seq, _, _) in rows
            if seq.rules.processor is not None
        ]
        self.faults = {}

    def apply(self, logits: Tensor) -> None:
        self.faults = {}
        for row, seq, processor in self._rows:
            try:
                logits[row] = _run_processor(logits[row], seq, processor)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - one request's fault, not the others'
                self.faults[row] = _processor_error(seq.sampling.custom_logit_processor, error)
                logits[row] = 0

    def can_launch(self) -> bool:
        return False  # they may wait for the device

    def needs_tokens(self) -> bool:
        return True

    def blame(self, highest: Tensor) -> None:
        """Fault the rows that have a processor and no token left, now that every mask is applied:
        ``highest`` [rows] of their logits is -inf."""
        for row, seq, _ in self._rows:
            if highest[row] == -torch.inf:
                self.faults[row] = InvalidRequest(_no_token_left(seq))


def _no_token_left(seq: Sequence) -> str:
    name = seq.sampling.custom_logit_processor
    if seq.choice.grammar is not None:
        return f"custom_logit_processor: {name!r} and the constraint leave no possible token"
    if seq.choice.stop_checker.end_ids and seq.is_below_min_tokens(0):
        return f"custom_logit_processor: {name!r} and min_tokens leave no possible token"
    return f"custom_logit_processor: {name!r} leaves no possible token; change custom_params"


def _run_processor(logits: Tensor, seq: Sequence, processor: Processor) -> Tensor:
    """Return the logits that a processor makes of a row. It gets copies, so it cannot change the
    other rows of the step or the sequence's tokens."""
    own = logits.clone()
    returned: object = processor(list(seq.token_ids), own)
    if returned is not None and returned is not own:
        raise TypeError("it returned a value: a processor changes its logits in place")
    if own.shape != logits.shape:
        raise ValueError(f"it changed the shape of its logits to {list(own.shape)}")
    return own


def make_processor(
    name: str, factory: Factory, params: Mapping[str, object], context: ChoiceContext
) -> CustomProcessor:
    """Return the processor of one choice. Raises InvalidRequest for parameters that it refuses, and
    ProcessorError if it cannot be made."""
    try:
        made = factory(params, context)
        if not callable(made):
            raise TypeError(f"the factory returned {made!r:.80}, which cannot be called")
    except ValueError as error:
        raise InvalidRequest(f"custom_params: {error}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _processor_error(name, error) from error
    return made


def _processor_error(name: str | None, cause: BaseException) -> ProcessorError:
    """Return the error for a processor that raised. Clients see its message, which therefore names
    only the processor; the cause goes to the log."""
    error = ProcessorError(
        f"custom_logit_processor: {name!r} raised an exception on this request and would raise it "
        "again. Ask your administrator: the worker's log has the traceback."
    )
    error.__cause__ = cause
    return error


class DisallowedTokens:
    """``disallowed_tokens``: the ids in ``token_ids`` are never sampled."""

    def __init__(self, params: Mapping[str, object], context: ChoiceContext) -> None:
        _check_names(params, {"token_ids"})
        ids = params.get("token_ids")
        if not isinstance(ids, list) or not all(
            type(i) is int and 0 <= i < context.vocab_size for i in ids
        ):
            raise ValueError(f"token_ids must be a list of ids from 0 to {context.vocab_size - 1}")
        self._ids = torch.tensor(sorted(set(ids)), dtype=torch.int64)

    def __call__(self, token_ids: Rows[int], logits: Tensor) -> None:
        logits[self._ids] = -torch.inf


class ThinkingBudget:
    """``thinking_budget``: after that many tokens of thinking, in prompt and output, it ends.

    Thinking is the text between ``start_token`` and ``end_token``, which are single tokens of the
    model, by default ``<think>`` and ``</think>``.
    """

    def __init__(self, params: Mapping[str, object], context: ChoiceContext) -> None:
        _check_names(params, {"thinking_budget", "start_token", "end_token"})
        budget = params.get("thinking_budget")
        if type(budget) is not int or budget < 0:
            raise ValueError("thinking_budget must be an integer of at least 0")
        self._budget = budget
        self._start = _token(params.get("start_token", "<think>"), context)
        self._end = _token(params.get("end_token", "</think>"), context)
        self._num_seen = 0
        self._thought: int | None = None  # tokens since thinking began; None outside it

    def __call__(self, token_ids: Rows[int], logits: Tensor) -> None:
        for token_id in token_ids[self._num_seen :]:
            if token_id == self._start:
                self._thought = 0
            elif token_id == self._end:
                self._thought = None
            elif self._thought is not None:
                self._thought += 1
        self._num_seen = len(token_ids)
        if self._thought is not None and self._thought >= self._budget:
            end = logits[self._end].clone()
            logits.fill_(-torch.inf)
            logits[self._end] = end


def _token(text: object, context: ChoiceContext) -> int:
    token_id = context.tokenizer.token_to_id(text) if isinstance(text, str) else None
    if token_id is None:
        raise ValueError(f"{text!r} is not a token of this model")
    return int(token_id)


def _check_names(params: Mapping[str, object], known: set[str]) -> None:
    if unknown := sorted(params.keys() - known):
        raise ValueError(f"{unknown[0]!r} is unknown; known: {', '.join(sorted(known))}")
