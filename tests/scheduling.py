"""Which tests run, in which process, and in which order."""

import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import is_hypothesis_test, settings
from hypothesis.errors import InvalidArgument
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

SHARES = 16
COSTLY = ("long", "faults")
"""Marks of the tests that are dealt to shares."""

_WAITING = ("tests/acceptance/", "tests/upgrades/", "tests/faults/")
"""Folders whose tests mostly wait for processes. What one process does longest begins first."""

_LARGE = ("tests/conformance/", "tests/workers/engine/")
"""Folders of large files. What begins last has to be small, or one processor waits at the end."""

_MOST_WAITING = 2
"""Processes that run them at a time: the others use the processors meanwhile."""

_DIVISIBLE = ("tests/conformance/families/test_families.py",)
"""Files of many tests that share nothing."""
_PARTS = 8

TOGETHER = {
    "tests/acceptance/kills/test_split_model.py": (),
    "tests/acceptance/pages/test_members.py": (),
    "tests/acceptance/pages/test_sign_in.py": (),
    "tests/acceptance/test_langchain_and_litellm.py": (),
    "tests/acceptance/test_scripted_chat.py": (),
    "tests/acceptance/test_open_responses.py": (),
    "tests/acceptance/test_padded_vocabularies.py": (),
    "tests/acceptance/test_real_models.py": ("served",),
    "tests/acceptance/test_swapping.py": (),
    "tests/conformance/chat_templates/": ("package",),
    "tests/conformance/tokenizers/": ("family", "sides"),
    "tests/faults/": (),
    "tests/upgrades/test_stored_homes.py": ("upgraded",),
    "tests/upgrades/test_mixed_versions.py": ("version", "mixed"),
    "tests/workers/engine/backends/parallel/test_captures.py": (),
    "tests/workers/engine/backends/parallel/test_group.py": (),
}
"""Files whose tests take less time than the fixtures that they share, with the parameters of these
fixtures: one share of the long tests has all tests of a file and of these parameters."""

_SCRIPTED = (
    "tests/acceptance/kills/test_kills.py",
    "tests/acceptance/kills/test_messages.py",
    "tests/acceptance/kills/test_responses.py",
    "tests/acceptance/kills/test_rolling_restart.py",
    "tests/acceptance/kills/test_web_sockets.py",
    "tests/acceptance/test_limits.py",
)

ALONE = (
    "tests/acceptance/documents/test_rollouts.py",
    "tests/acceptance/documents/test_tour.py",
    "tests/acceptance/kills/test_split_model.py",
    "tests/acceptance/pages/test_members.py",
    "tests/acceptance/pages/test_sign_in.py",
    "tests/acceptance/pages/test_webhooks.py",
    "tests/acceptance/test_open_responses.py",
    "tests/acceptance/test_padded_vocabularies.py",
    "tests/acceptance/test_real_models.py",
    "tests/acceptance/test_scripted_chat.py",
    "tests/acceptance/test_seeds.py",
    "tests/acceptance/test_servers.py",
    "tests/acceptance/test_swapping.py",
)
"""Acceptance tests that share no installation with other files."""

_SCRIPTED_FAULTS = tuple(
    f"tests/faults/test_{name}.py" for name in ("clients", "messages", "resources", "storm")
)
"""They share an installation, too. Each other file of faults makes its own."""


def order_items(items: list[pytest.Item]) -> None:
    """Put first what takes minutes while it mostly waits, then what is large."""
    folders = (*_WAITING, *_LARGE, "")
    items.sort(key=lambda item: next(n for n, f in enumerate(folders) if item.nodeid.startswith(f)))


def widen(items: Iterable[pytest.Item], *, whole_files: bool) -> None:
    """Mark the cases of a test as wide that others represent.

    Raises:
        UsageError: a test has no such case, though all cases of its file are there.
    """
    left = {}
    for item in items:
        if (marker := item.get_closest_marker("represented_by")) is not None:
            function, _, case = item.nodeid.partition("[")
            cases = left.setdefault(function, set(marker.args))
            if case.removesuffix("]") not in marker.args:
                item.add_marker("wide")
            cases.discard(case.removesuffix("]"))
    if whole_files and (absent := {function: cases for function, cases in left.items() if cases}):
        raise pytest.UsageError(f"represented_by names no case: {absent}")


def select_share(items: Sequence[pytest.Item], word: str) -> list[bool]:
    """Return for each test whether it runs: all that is neither long nor a fault, and one share of
    the rest.

    The property tests of the share draw the examples of the long profile.
    """
    chosen = zlib.crc32(word.encode()) % SHARES
    costly = [item for item in items if any(map(item.get_closest_marker, COSTLY))]
    properties = [
        item for item in items if isinstance(item, pytest.Function) and is_hypothesis_test(item.obj)
    ]
    at_length = set(deal({_function_name(item.nodeid) for item in properties})[chosen])
    for item in properties:
        if _function_name(item.nodeid) in at_length:
            draw_at_length(item.function, item.cls)
    units = [name_unit(item) for item in costly]
    kept = set(deal(set(units))[chosen])
    left_out = {item.nodeid for item, unit in zip(costly, units, strict=True) if unit not in kept}
    return [item.nodeid not in left_out for item in items]


def name_unit(item: pytest.Item) -> str:
    """Return the name that a test shares with those that run in the same share."""
    for path, names in TOGETHER.items():
        if item.nodeid.startswith(path):
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            values = "-".join(str(parameters[name]) for name in names if name in parameters)
            return f"{item.nodeid.partition('::')[0]}[{values}]"
    return item.nodeid


def deal(names: Iterable[str]) -> list[list[str]]:
    """Deal names to shares as cards are dealt, so that each share gets as much of each file.

    A hash orders the cases of one function: their own order often alternates between few kinds.
    Names are those of tests, or of files with the parameters that their tests share.
    """
    ordered = sorted(names, key=lambda name: (_function_name(name), zlib.crc32(name.encode())))
    return [ordered[share::SHARES] for share in range(SHARES)]


def _function_name(name: str) -> str:
    return name.partition("[")[0]


def draw_at_length(function: Callable[..., object], case: type | None = None) -> None:
    """Let a property draw the examples of the long profile, unless it says how many it draws.

    `case` is the class of a state machine's test, which has the settings.
    """
    length = settings.get_profile("long")
    machine: Any = case
    if isinstance(getattr(machine, "settings", None), settings):  # Django's test cases have another
        machine.settings = settings(machine.settings, max_examples=length.max_examples)
        return
    with suppress(InvalidArgument):  # it has settings of its own, or has these already
        length(function)


class ByInstallation(LoadScopeScheduling):
    """Each file runs in one process, so that its fixtures are made once, and so do the acceptance
    tests of the scripted installation, and those of the real one. While something else is left, few
    processes run what waits."""

    def _split_scope(self, nodeid: str) -> str:
        file, *_ = nodeid.split("::")
        if file in _SCRIPTED:
            return "tests/acceptance/: scripted installation"
        if file in _SCRIPTED_FAULTS:
            return "tests/faults/: scripted installation"
        if file.startswith("tests/acceptance/") and file not in ALONE:
            return "tests/acceptance/: real installation"
        if file in _DIVISIBLE:
            return f"{file}: part {zlib.crc32(nodeid.encode()) % _PARTS}"
        return file

    def _assign_work_unit(self, node: WorkerController) -> None:
        if sum(map(self._is_waiting, self.nodes)) >= _MOST_WAITING:
            for scope in self.workqueue:
                if not scope.startswith(_WAITING):
                    self.workqueue.move_to_end(scope, last=False)
                    break
        super()._assign_work_unit(node)

    def _is_waiting(self, node: WorkerController) -> bool:
        """Return whether a process has tests left that mostly wait."""
        return any(
            scope.startswith(_WAITING) and not all(unit.values())
            for scope, unit in self.assigned_work[node].items()
        )
