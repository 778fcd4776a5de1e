"""The options of the comparison of forwards."""

import sys

import pytest

from benchmarks.studies import forwards


@pytest.mark.parametrize("options", [["--batches", "1"], ["--new-tokens", "24,12"]])
def test_every_batch_size_needs_its_number_of_new_tokens(options, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["forwards", "--model", "/nowhere", *options])
    with pytest.raises(SystemExit):
        forwards.main()
    assert "--new-tokens takes as many numbers as --batches" in capsys.readouterr().err
