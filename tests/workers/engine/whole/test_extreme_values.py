"""An extreme value of a parameter can fail its own request only."""

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from completions.contract.job_request import LogprobParams
from completions.contract.sampling import FLOATS, LOGIT_BIAS, Range
from tests.workers.engine import greedy
from tests.workers.engine.driving import MakeEngine, advance, request
from workers.engine.exceptions import InvalidRequest

NEIGHBOUR = greedy.prompt(9)
INTEGERS = st.sampled_from([-(2**70), -(2**63) - 1, -1, 0, 1, 2**31, 2**63 - 1, 2**63, 2**70])
TINY = (-5e-324, 0.0, 5e-324, 1e-39, 1e-9)
LARGE = (0.5, math.nextafter(1, 0), 1.0, 3.4e38, 1.7e308)


def extremes(range: Range[float]) -> st.SearchStrategy[float]:
    """The bounds of a range, and the very small and very large values in it."""
    values = (*TINY, *LARGE, range.low, range.high)
    return st.sampled_from([value for value in values if value is not None and value in range])


PARAMETERS: dict[str, st.SearchStrategy[Any]] = {
    **{name: extremes(range) for name, range in FLOATS.items()},
    "top_k": INTEGERS.filter(lambda value: value >= -1),
    "logit_bias": st.dictionaries(st.integers(0, 5), extremes(LOGIT_BIAS), max_size=3),
    "dry_allowed_length": st.sampled_from([0, 1, 2**31 - 1]),
    "seed": INTEGERS,
    "min_tokens": st.integers(0, 3),
    "n": st.integers(1, 2),
}
LOGPROBS = st.builds(
    LogprobParams, st.sampled_from([0, 20]), INTEGERS, st.just(()) | st.just((0, 5))
)


@pytest.mark.hypothesis
def test_the_others_do_not_notice(make_engine: MakeEngine, tiny_llama: Path) -> None:
    engine = make_engine()
    usual = greedy.generate(tiny_llama, NEIGHBOUR, 5)

    @given(
        st.fixed_dictionaries({}, optional=PARAMETERS), st.none() | LOGPROBS,
        st.sampled_from([(7,), (7, 8, 7, 8, 7, 8)]),
    )  # fmt: skip
    def check(
        parameters: dict[str, Any], logprobs: LogprobParams | None, prompt: tuple[int, ...]
    ) -> None:
        extreme = request("extreme", prompt, max_tokens=3, **parameters)
        if logprobs is not None:
            extreme = replace(extreme, logprobs=(logprobs,))
        with suppress(InvalidRequest):
            engine.submit(extreme)
        engine.submit(request("good", NEIGHBOUR, max_tokens=5))
        outputs = []
        try:
            while engine.live:
                outputs += advance(engine)
        finally:
            engine.abort("extreme")
            engine.abort("good")
        good = [output for output in outputs if output.request_id == "good"]
        assert all(output.error is None for output in good)
        assert [t for output in good for c in output.deltas for t in c.token_ids] == usual

    check()
