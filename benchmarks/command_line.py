"""The options and the output of a benchmark's command."""

import argparse
from typing import Any


def parser(doc: str | None, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser with one option for each default, of the default's type. A list of integers
    is written with commas."""
    made = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    for name, default in defaults.items():
        kind, shown = (
            (sizes, ",".join(map(str, default)))
            if isinstance(default, list)
            else (type(default), default)
        )
        flag = f"--{name.replace('_', '-')}"
        made.add_argument(flag, type=kind, default=default, help=f"default: {shown}")
    return made


def sizes(text: str) -> list[int]:
    return [int(size) for size in text.split(",") if size]


def print_columns(*cells: object, width: int = 12) -> None:
    """Print one line of right-aligned cells."""
    print(" ".join(f"{cell!s:>{width}}" for cell in cells), flush=True)
