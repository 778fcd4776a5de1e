"""The queries of sessions, in both databases."""

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.integration


@pytest.mark.wide
def test_the_turns_up_to_a_choice(run_apart: Callable[[str], list[str]]) -> None:
    assert run_apart("session_apart") == ["1:1", "2:0", "4:1", "2", "2", "2", "2"]
