"""Memory of the host: how much this process may still take, and zeros that take it lazily."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class _Version(NamedTuple):
    """The files of a control group in one version of Linux's control groups."""

    limit: str
    used: str
    cached: tuple[str, ...]
    """The fields of ``memory.stat`` that count cached files, which the system drops: also those
    that were read twice, such as a checkpoint."""


_V1 = _Version(
    "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")
)
_V2 = _Version("memory.max", "memory.current", ("inactive_file", "active_file"))


def available_memory(root: Path = Path("/")) -> int | None:
    """Return bytes that are free, or would be once the system drops cached files, and no more than
    the limits of this process's control groups leave, such as a container's. None if the system
    does not report it. ``root`` is the root of its files."""
    amounts = [_read_host(root), *(_read_left(group, version) for group, version in _groups(root))]
    return min((each for each in amounts if each is not None), default=None)


def _read_host(root: Path) -> int | None:
    try:
        meminfo = (root / "proc/meminfo").read_text()
    except OSError:
        return None
    line = re.search(r"^MemAvailable:\s+(\d+) kB", meminfo, re.MULTILINE)
    return None if line is None else int(line[1]) * 1024


def _groups(root: Path) -> Iterator[tuple[Path, _Version]]:
    """This process's own control groups and those above them."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            version, top = _V2, root / "sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            version, top = _V1, root / "sys/fs/cgroup/memory"
        else:
            continue
        group = top / path.lstrip("/")  # absent if it is a path of the host, seen in a container
        while group != top:
            yield group, version
            group = group.parent
        yield top, version


def _read_left(group: Path, version: _Version) -> int | None:
    try:
        limit = (group / version.limit).read_text().strip()
        used = int((group / version.used).read_text())
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    return max(0, int(limit) - used + _read_page_cache(group, version))


def _read_page_cache(group: Path, version: _Version) -> int:
    try:
        lines = (group / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    stat = dict(line.split() for line in lines)
    return sum(int(stat.get(name, 0)) for name in version.cached)


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros whose memory the system provides page by page, as they are first written."""
    if 0 in shape:
        return torch.zeros(shape, dtype=dtype)
    raw = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).view(shape)
