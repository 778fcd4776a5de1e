"""The gate: which ratios fail, and what is stored."""

import json

import pytest

from benchmarks import gate
from benchmarks.gate import STORED, find_losses, main, read_stored
from benchmarks.ratios import find_processor, read_run, write_run


@pytest.mark.parametrize(("now", "fails"), [(2.0, False), (1.81, False), (1.79, True), (9, False)])
def test_a_ratio_may_lose_a_tenth(now, fails):
    assert bool(find_losses({"a / b": 2.0}, {"a / b": now})) is fails


def test_ratios_of_one_side_alone_do_not_count():
    assert find_losses({"gone": 2.0}, {"new": 0.1}) == []


@pytest.fixture
def run(tmp_path):
    """A run's file."""

    def write(**ratios: float):
        path = tmp_path / "run.json"
        write_run(path, ratios, rows=[1])
        return path

    return write


def test_a_loss_is_named_and_fails_until_it_is_stored(run, tmp_path, capsys):
    stored = tmp_path / "ratios.json"
    assert main([str(run(speed=2.0, other=1.0)), "--stored", str(stored), "--store"]) == 0
    assert read_stored(stored) == {find_processor(): {"speed": 2.0, "other": 1.0}}
    slower = str(run(speed=1.5))
    assert main([slower, "--stored", str(stored)]) == 1
    assert "speed: 1.50, and 2.00 is stored (-25%)" in capsys.readouterr().err
    assert main([slower, "--stored", str(stored), "--store"]) == 0
    assert main([slower, "--stored", str(stored)]) == 0
    assert read_stored(stored)[find_processor()]["other"] == 1.0


def test_another_processor_is_not_judged(run, tmp_path, capsys):
    stored = tmp_path / "ratios.json"
    stored.write_text(json.dumps({"Another": {"speed": 2.0}}))
    assert main([str(run(speed=1.0)), "--stored", str(stored)]) == 0
    assert "no ratios of" in capsys.readouterr().out


@pytest.mark.parametrize("text", [None, "{}", "no JSON"])
def test_what_is_no_run_is_refused_and_stores_nothing(text, tmp_path, capsys):
    path, stored = tmp_path / "run.json", tmp_path / "ratios.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit) as caught:
        main([str(path), "--stored", str(stored), "--store"])
    assert caught.value.code == 2  # 1 is a loss
    assert str(path) in capsys.readouterr().err
    assert not stored.exists()


def test_a_run_keeps_what_else_was_measured(run):
    path = run(speed=1.0)
    assert json.loads(path.read_text())["rows"] == [1]
    assert read_run(path).ratios == {"speed": 1.0}


def test_the_stored_ratios_can_be_read():
    assert STORED.exists()
    assert all(ratio > 0 for ratios in read_stored(STORED).values() for ratio in ratios.values())
    assert gate.TOLERANCE == 0.1


def test_the_processor_has_a_name() -> None:
    name, _, instructions = find_processor().rpartition(" (")
    assert name
    assert instructions.endswith(")")
