"""The API on whose sessions tests add turns."""

from functools import partial

import pytest

from tests.completions.sessions.turns import EOS, A, B


@pytest.fixture
def session(live):
    """The API with a worker that answers `AB` and ends it."""
    live.worker.run = partial(live.worker.run, tokens=(A, B, EOS))
    return live
