"""Cases of which a few stand for all of their kinds: the quick run has these, the long one all."""

from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet


def stand_for_all(quick: Iterable[object], cases: Iterable[object]) -> list[ParameterSet]:
    """Return the parameters of each case, which is a tuple if a test takes several; all but those
    of `quick` are long."""
    quick, cases = set(quick), list(cases)
    assert quick <= set(cases), f"no cases: {quick - set(cases)}"
    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=() if case in quick else pytest.mark.long,
        )
        for case in cases
    ]
