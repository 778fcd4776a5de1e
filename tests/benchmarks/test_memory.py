"""The campaign over many requests, with few."""

import pytest

from benchmarks import memory
from benchmarks.memory import KINDS, Row, growth


def test_it_serves_every_kind_and_says_what_it_held(capsys):
    assert memory.main(["--requests", "40", "--most-mib", "1000"]) == 0
    *table, account, last = capsys.readouterr().out.splitlines()
    assert [int(line.split()[0]) for line in table[1:]] == list(range(4, 41, 4))
    assert f" {2 * 40 // len(KINDS)} requests that had to fail" in account
    assert "0 blocks still held" in account
    assert last.startswith("growth after the first fifth: ")


def test_growth_leaves_out_the_first_fifth():
    rows = [Row(i, mib, 100 + i) for i, mib in enumerate([50, 60, 60, 61, 61, 61, 62, 62, 62, 63])]
    assert growth(rows) == (3, 8)


def test_growth_is_a_failure(capsys, monkeypatch):
    rows = [Row(i, 50 + 2 * i, 100) for i in range(10)]
    monkeypatch.setattr(memory, "measure", lambda campaign, requests: rows)
    assert memory.main([]) == 1
    assert "+16.0 MiB" in capsys.readouterr().out


def test_a_broken_engine_is_reported():
    campaign = memory.Campaign(engine=None)  # type: ignore[arg-type]
    campaign._on_fatal(RuntimeError("step failed"))
    with pytest.raises(RuntimeError, match="does not answer"):
        campaign.serve(1)
