"""The tests that docs/contributing.md names for its promises are there."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMED = re.compile(r"`(tests/[^`]+\.py)::([^`]+)`")


def names_in(body, inside=""):
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from names_in(node.body, f"{node.name}::")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield inside + node.name


def test_every_promise_is_shown_by_tests_that_are_there():
    table = (ROOT / "docs" / "contributing.md").read_text().partition("## Promises")[2]
    promises = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(promises) > 15
    for promise in promises:
        shown_by = NAMED.findall(promise)
        assert shown_by, promise
        for path, name in shown_by:
            assert name in set(names_in(ast.parse((ROOT / path).read_text()).body)), (path, name)
