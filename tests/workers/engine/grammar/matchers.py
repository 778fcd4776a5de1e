"""Matchers and masks of a tiny vocabulary."""

import threading
from typing import Any

import torch

from workers.engine.exceptions import EngineError
from workers.engine.grammar.mask import GrammarMask
from workers.engine.grammar.structured_output import GrammarMatcher, StructuredOutput

PADDING = 7
EOS_IDS = frozenset({0, 5})


def compile_now(
    structured_output: StructuredOutput, grammar: str, count: int = 1
) -> list[GrammarMatcher] | EngineError:
    done = threading.Event()
    results: list[Any] = []

    def finish(result: Any) -> None:
        results.append(result)
        done.set()

    structured_output.compile(grammar, count, finish)
    assert done.wait(120)
    return results[0]  # type: ignore[no-any-return]


def matcher(structured_output: StructuredOutput, grammar: str) -> GrammarMatcher:
    result = compile_now(structured_output, grammar)
    assert not isinstance(result, EngineError), result
    return result[0]


def mask(structured_output: StructuredOutput, *rows: Any) -> GrammarMask:
    filling = structured_output.start_mask(list(rows))
    assert filling is not None
    return filling.result()


def allowed(structured_output: StructuredOutput, *rows: Any) -> torch.Tensor:
    return ~mask(structured_output, *rows).forbidden


def plan(state: GrammarMatcher) -> list[int]:
    """Follow the grammar for as long as it leaves no choice."""
    token_ids = []
    while (token_id := state.forced) is not None:
        token_ids.append(token_id)
        state.consume(token_id)
    return token_ids
