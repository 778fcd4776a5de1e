"""The shares of the long tests, and how many examples their properties draw."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests import scheduling

ROOT = Path(__file__).resolve().parents[1]
NAMES = st.sets(st.from_regex(r"[ab]\.py::test_[cd](\[[0-9]{1,3}\])?", fullmatch=True))


@given(NAMES)
def test_each_name_is_in_one_share(names: set[str]) -> None:
    shares = scheduling.deal(names)
    assert len(shares) == scheduling.SHARES
    assert sorted(name for share in shares for name in share) == sorted(names)


@given(NAMES)
def test_each_share_has_as_much_of_each_function(names: set[str]) -> None:
    counts = [Counter(n.partition("[")[0] for n in share) for share in scheduling.deal(names)]
    for function in {name.partition("[")[0] for name in names}:
        each = [count[function] for count in counts]
        assert max(each) - min(each) <= 1
    sizes = [count.total() for count in counts]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("path", scheduling.TOGETHER)
def test_tests_of_costly_fixtures_are_in_one_share(path: str) -> None:
    assert (ROOT / path).exists()
    file = path if path.endswith(".py") else f"{path}test_some.py"
    names = scheduling.TOGETHER[path]

    def name_unit(function: str, value: str) -> str:
        call = SimpleNamespace(params={"skip": function, **dict.fromkeys(names, value)})
        item: Any = SimpleNamespace(nodeid=f"{file}::{function}[{value}]", callspec=call)
        return scheduling.name_unit(item)

    assert name_unit("test_a", "1") == name_unit("test_b", "1")
    assert (name_unit("test_a", "1") != name_unit("test_a", "2")) == bool(names)
    other: Any = SimpleNamespace(nodeid="tests/test_scheduling.py::test_a")
    assert scheduling.name_unit(other) == other.nodeid


class Item:
    """A test with marks, of which `-m` and shares see the names."""

    def __init__(self, nodeid: str, *marks: pytest.MarkDecorator) -> None:
        self.nodeid = nodeid
        self._marks = [mark.mark for mark in marks]

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return next((mark for mark in self._marks if mark.name == name), None)

    def add_marker(self, name: str) -> None:
        self._marks.append(getattr(pytest.mark, name).mark)

    @property
    def marks(self) -> set[str]:
        return {mark.name for mark in self._marks}


def test_cases_that_others_represent_are_wide() -> None:
    mark = pytest.mark.represented_by("a[0]", "c")
    items: list[Any] = [Item(f"test_x.py::test_y[{case}]", mark) for case in ("a[0]", "b", "c")]
    scheduling.widen([*items, Item("test_x.py::test_z[b]")], whole_files=True)
    assert ["wide" in item.marks for item in items] == [False, True, False]


def test_a_representative_that_is_no_case_is_named() -> None:
    items: list[Any] = [Item("test_x.py::test_y[b]", pytest.mark.represented_by("a"))]
    with pytest.raises(pytest.UsageError, match="'a'"):
        scheduling.widen(items, whole_files=True)
    scheduling.widen(items, whole_files=False)  # somebody chose one case


def test_wide_tests_are_in_each_share() -> None:
    names = [f"test_x.py::test_y[{case}]" for case in range(scheduling.SHARES)]
    wide: list[Any] = [Item(name, pytest.mark.wide) for name in names]
    long: list[Any] = [Item(name.replace("y", "z"), pytest.mark.long) for name in names]
    chosen = scheduling.select_share([*wide, *long], "any commit")
    assert chosen[: len(wide)] == [True] * len(wide)
    assert chosen[len(wide) :].count(True) == 1


def test_properties_of_the_share_draw_the_examples_of_the_long_profile() -> None:
    length = settings.get_profile("long").max_examples
    assert length > settings.get_profile("quick").max_examples
    drawn = {"plain": 0, "own": 0}

    @given(st.integers())
    def plain(_value: int) -> None:
        drawn["plain"] += 1

    @given(st.integers())
    @settings(max_examples=7)
    def own(_value: int) -> None:
        drawn["own"] += 1

    for function in (plain, own, plain):  # the cases of a function share it
        scheduling.draw_at_length(function)
    plain()
    own()
    assert drawn == {"plain": length, "own": 7}


def test_machines_of_the_share_do_so_too() -> None:
    class Machine(RuleBasedStateMachine):
        @rule()
        def step(self) -> None:
            pass

    case = Machine.TestCase
    scheduling.draw_at_length(case.runTest, case)
    assert case.settings.max_examples == settings.get_profile("long").max_examples


@pytest.mark.parametrize("path", scheduling.ALONE)
def test_a_file_with_an_installation_of_its_own_is_there(path: str) -> None:
    assert (ROOT / path).exists()
