"""Sequences as the sampler sees them: parameters, place and output so far."""

from collections.abc import Iterable
from typing import Any
from unittest.mock import Mock

from completions.contract.sampling import SamplingParams
from workers.engine.core.choice import Choice
from workers.engine.core.sequence import Sequence
from workers.engine.core.sequence_parts import Origin, SamplingRules
from workers.engine.core.step import lay_rows
from workers.engine.sampling.logits_processors import LogitsProcessor
from workers.engine.sampling.sampler import BANS, CHANGES
from workers.engine.text.stop_checker import StopChecker

EOS = frozenset({0})


def set_rows(processor: LogitsProcessor, rows: Iterable[Sequence]) -> None:
    """Tell a processor of the rows of a step, of which it sees those that ask for it."""
    uses = {use.make: use for use in (*CHANGES, *BANS)}
    is_wanted = uses[type(processor)].is_wanted
    processor.set_rows([(i, row) for i, row in enumerate(lay_rows(rows)) if is_wanted(row)])


def row(
    output: Iterable[int] = (),
    *,
    prompt: Iterable[int] = (1,),
    place: tuple[int, int] = (0, 0),
    grammar: Any = None,
    penalizes_prompt: bool = False,
    **params: Any,
) -> Sequence:
    """A sequence whose output so far is ``output``; ``place`` is (prompt, choice)."""
    sampling = SamplingParams(**{"max_tokens": 99, **params})
    checker = StopChecker(sampling, EOS, 99)
    for _ in output:
        checker.count()
    return Sequence(
        sampling=sampling,
        choice=Choice(0, Mock(), checker, grammar),
        token_ids=[*prompt, *output],
        prompt_len=len(list(prompt)),
        max_total_tokens=100,
        origin=Origin(*place),
        rules=SamplingRules(penalizes_prompt=penalizes_prompt),
    )
