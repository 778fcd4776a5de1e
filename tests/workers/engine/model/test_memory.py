"""What the system says of its memory, and what a container leaves of it."""

from pathlib import Path

import pytest

from workers.engine.model.memory import available_memory

MEMINFO = "MemTotal:       16384000 kB\nMemFree:         1024000 kB\nMemAvailable:    8192000 kB\n"


def container(folder: Path, limit: str, used: int, cached: int) -> Path:
    folder.mkdir()
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon {used - cached}\ninactive_file {cached}\n")
    return folder


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text(MEMINFO)
    return path


def test_a_host_counts_files_that_it_would_drop(meminfo: Path, tmp_path: Path) -> None:
    assert available_memory(meminfo, tmp_path / "none") == 8192000 * 1024


def test_a_container_has_what_its_limit_leaves(meminfo: Path, tmp_path: Path) -> None:
    limited = container(tmp_path / "limited", str(2**30), used=2**29, cached=2**28)
    assert available_memory(meminfo, limited) == 2**30 - 2**29 + 2**28
    free = container(tmp_path / "free", "max", used=2**29, cached=0)
    assert available_memory(meminfo, free) == 8192000 * 1024


def test_a_system_that_says_nothing_has_no_figure(tmp_path: Path) -> None:
    assert available_memory(tmp_path / "none", tmp_path / "none") is None
