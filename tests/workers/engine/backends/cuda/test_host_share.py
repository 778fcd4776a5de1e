"""The host's share of a decode step on a GPU, counted in calls of functions, which no other load
changes. ``benchmarks.studies.gpu_host`` measures it in milliseconds."""

import sys
from typing import Any

import pytest

from benchmarks.studies import gpu_host
from completions.contract.sampling import SamplingParams
from workers.engine.core.request import Request

MOST_CALLS = {"greedy": 49, "temperature": 50, "top_k": 50, "penalty": 54}
"""By kind of row: calls of a step for each further row, of Python functions and built-in ones."""


def calls_of_a_step(rows: int, params: dict[str, Any]) -> int:
    """The calls of the fifth step after the prompts."""
    engine = gpu_host.make_engine(rows)
    count = 0

    def note(_frame: Any, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    try:
        for i in range(rows):
            sampling = SamplingParams(max_tokens=32, ignore_eos=True, seed=i, **params)
            engine.submit(Request(((1 + i, 2, 3),), sampling, request_id=str(i)))
        for _ in range(5):
            engine.turn()
        sys.setprofile(note)
        try:
            engine.turn()
        finally:
            sys.setprofile(None)
    finally:
        engine.stop()
    return count


@pytest.mark.represented_by("greedy")
@pytest.mark.parametrize("kind", MOST_CALLS)
def test_a_row_takes_few_calls(kind: str) -> None:
    params = gpu_host.KINDS[kind]
    each = (calls_of_a_step(48, params) - calls_of_a_step(16, params)) / 32
    assert each <= MOST_CALLS[kind]
