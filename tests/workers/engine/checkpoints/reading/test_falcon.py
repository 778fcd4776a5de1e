from pathlib import Path
from typing import Any

import pytest

from tests.conformance.families.table import Case
from tests.conformance.families.trial import try_case


@pytest.mark.represented_by("multi-query")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"parallel_attn": False, "bias": True},
        {"multi_query": False},
        {"new_decoder_architecture": True, "num_kv_heads": 2},
    ],
    ids=["multi-query", "serial", "a key for each head", "groups"],
)
def test_falcon_runs_over_pages(tmp_path: Path, options: dict[str, Any]) -> None:
    verdict = try_case(tmp_path, Case("falcon", "", {"alibi": False, **options}))
    assert verdict.failures == []
    assert verdict.forward == "torch"


def test_falcon_with_alibi_runs_by_itself(tmp_path: Path) -> None:
    assert try_case(tmp_path, Case("falcon", "", {"alibi": True})).forward == "general"
