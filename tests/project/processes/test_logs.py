"""project.processes.logs: rotation by size and the end of a file."""

import os

import pytest

from project.processes import logs


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "ROTATE_AT", 10)
    return tmp_path / "web.log"


def test_small_and_absent_logs_stay(path):
    logs.rotate(path)
    path.write_text("1234567890")
    logs.rotate(path)
    assert path.read_text() == "1234567890"


def test_large_logs_move_on_and_the_oldest_goes(path):
    for number in range(6):
        path.write_text(f"generation {number}")
        logs.rotate(path)
    assert path.read_text() == ""
    assert sorted(os.listdir(path.parent))[1:] == ["web.log.1", "web.log.2", "web.log.3"]
    assert (path.parent / "web.log.1").read_text() == "generation 5"
    assert (path.parent / "web.log.3").read_text() == "generation 3"


def test_a_child_that_holds_the_log_open_goes_on_in_it(path):
    with path.open("ab", buffering=0) as log:
        log.write(b"before the rotation\n")
        logs.rotate(path)
        log.write(b"after\n")
    assert path.read_text() == "after\n"
    assert path.with_name("web.log.1").read_text() == "before the rotation\n"


def test_tail_gives_the_last_lines(path):
    path.write_bytes(b"one\ntwo\nthree \xff\n")
    assert logs.read_tail(path, lines=2) == "two\nthree \ufffd"


def test_only_a_line_feed_ends_a_line(path):
    path.write_text("one\ntwo \u2028 three\n")
    assert logs.read_tail(path, lines=1) == "two \u2028 three"


def test_tail_of_nothing_is_empty(path):
    assert logs.read_tail(path) == ""
