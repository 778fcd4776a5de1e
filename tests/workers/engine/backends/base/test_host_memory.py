"""What the system says of its memory, and what control groups leave of it."""

from pathlib import Path

import pytest

from workers.engine.backends.base.host_memory import available_memory

MEMINFO = "MemTotal:       16384000 kB\nMemFree:         1024000 kB\nMemAvailable:    8192000 kB\n"
FREE = 8192000 * 1024
MIB = 2**20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The root of a system without control groups."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    return tmp_path


def join(root: Path, *lines: str) -> None:
    """Put this process into control groups."""
    (root / "proc/self/cgroup").write_text("".join(f"{line}\n" for line in lines))


def limit(root: Path, group: str, limit: str, used: int, cached: int = 0) -> None:
    """Make a control group of version 2."""
    folder = root / "sys/fs/cgroup" / group
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon {used - cached}\ninactive_file {cached}\n")


def limit_v1(root: Path, group: str, limit: int, used: int, cached: int = 0) -> None:
    folder = root / "sys/fs/cgroup/memory" / group
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"inactive_file 0\ntotal_inactive_file {cached}\n")


def test_a_host_counts_files_that_it_would_drop(root: Path) -> None:
    assert available_memory(root) == FREE


def test_a_container_has_what_its_limit_leaves(root: Path) -> None:
    join(root, "0::/")
    limit(root, "", str(1024 * MIB), used=512 * MIB, cached=256 * MIB)
    assert available_memory(root) == 768 * MIB
    limit(root, "", "max", used=512 * MIB)
    assert available_memory(root) == FREE


def test_files_that_were_read_twice_count_as_free(root: Path) -> None:
    join(root, "0::/")
    limit(root, "", str(1024 * MIB), used=1000 * MIB)
    (root / "sys/fs/cgroup/memory.stat").write_text(
        f"inactive_file {100 * MIB}\nactive_file {400 * MIB}\n"
    )
    assert available_memory(root) == 524 * MIB
    (root / "sys/fs/cgroup/memory.stat").unlink()
    assert available_memory(root) == 24 * MIB


def test_a_service_has_what_the_lowest_limit_above_it_leaves(root: Path) -> None:
    join(root, "0::/quire.slice/worker.service")
    limit(root, "quire.slice/worker.service", "max", used=512 * MIB)
    limit(root, "quire.slice", str(2048 * MIB), used=1024 * MIB)
    assert available_memory(root) == 1024 * MIB
    limit(root, "quire.slice/worker.service", str(600 * MIB), used=512 * MIB)
    assert available_memory(root) == 88 * MIB


def test_version_1_of_control_groups_limits_too(root: Path) -> None:
    join(root, "9:name=systemd:/init", "4:cpu,memory:/batch/worker", "0::/")
    limit_v1(root, "", 2**63 - 4096, used=3072 * MIB)
    limit_v1(root, "batch/worker", 1024 * MIB, used=512 * MIB, cached=128 * MIB)
    assert available_memory(root) == 640 * MIB


def test_a_path_of_the_host_is_not_in_the_container(root: Path) -> None:
    """Docker with version 1 names the host's path, but mounts the container's group as the root."""
    join(root, "4:memory:/docker/4f1c")
    limit_v1(root, "", 1024 * MIB, used=512 * MIB)
    assert available_memory(root) == 512 * MIB


def test_a_group_beyond_its_limit_leaves_nothing(root: Path) -> None:
    join(root, "0::/")
    limit(root, "", str(512 * MIB), used=513 * MIB)
    assert available_memory(root) == 0


def test_a_system_that_says_nothing_has_no_figure(tmp_path: Path) -> None:
    assert available_memory(tmp_path) is None
