"""Runs the examples of a page of docs/ one after another, as printed."""

import re
from typing import Any

import pytest

from tests.acceptance.service import ROOT, Installation


def run_examples(page: str, service: Installation, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Run all blocks of Python, which share their names, and close their `client`. Return what each
    printed."""
    text = (ROOT / "docs" / page).read_text()
    names: dict[str, Any] = {}
    printed = []
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        code = block.replace("http://localhost:8000", service.url).replace("sk-...", service.key)
        exec(code, names)  # noqa: S102 - our own text
        printed.append(capsys.readouterr().out.strip())
    names["client"].close()
    return printed
