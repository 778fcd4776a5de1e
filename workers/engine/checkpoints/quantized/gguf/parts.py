"""The files of a GGUF model: one, or the parts that llama.cpp's `gguf-split` makes of it."""

import re
from pathlib import Path

_PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


def part_paths(path: Path) -> list[Path]:
    """Return the files of the model whose first file is `path`, whether or not they exist."""
    named = _PART.fullmatch(path.name)
    if named is None or int(named[2]) != 1:
        return [path]
    count = int(named[3])
    return [path.with_name(f"{named[1]}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]


def first_part(path: Path) -> Path | None:
    """Return the name of the first part of the model that `path` is a part of, by its name."""
    named = _PART.fullmatch(path.name)
    return path.with_name(f"{named[1]}-00001-of-{named[3]}.gguf") if named else None
