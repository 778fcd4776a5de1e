"""How much memory this process may still take on its host."""

import re
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_FREED_FIRST = "inactive_file"


def available_memory(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """Bytes that are free, or would be once the system drops cached files; in a container, no more
    than its limit leaves. None if the system does not report it."""
    found = [_of_host(meminfo), _of_container(cgroup)]
    return min((each for each in found if each is not None), default=None)


def _of_host(meminfo: Path) -> int | None:
    try:
        line = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if line is None else int(line[1]) * 1024


def _of_container(cgroup: Path) -> int | None:
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return None if limit == "max" else int(limit) - used + int(stat.get(_FREED_FIRST, 0))
