"""The ratios of a run: figures of one process divided by those of another, in turns.

Load and machines change figures; a ratio within one run changes much less. A benchmark writes its
ratios with ``--json FILE``, and ``benchmarks.gate`` compares them with the stored ones.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec


class Run(msgspec.Struct, frozen=True):
    """The part of a benchmark's file that the gate reads."""

    processor: str
    ratios: dict[str, float]
    """By name; a higher one is better."""


def find_processor() -> str:
    """Return the name of this machine's processor, with the instructions that decide its speed."""
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    fields = dict(line.replace("\t", "").split(":", 1) for line in lines if ":" in line)
    flags = fields.get("flags", fields.get("Features", "")).split()
    known = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8", "asimd")
    names = [name for name in known if name in flags]
    return f"{fields.get('model name', 'unknown').strip()} ({', '.join(names)})"


def write_run(path: Path, ratios: Mapping[str, float], **more: Any) -> None:
    """Write what a benchmark measured, with its ratios and this machine's processor."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"processor": find_processor(), "ratios": dict(ratios), **more}
    path.write_text(json.dumps(document, indent=2) + "\n")


def read_run(path: Path) -> Run:
    """Read what a benchmark wrote. Raises OSError, and msgspec.DecodeError for another file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Run)
    except msgspec.DecodeError as error:
        raise msgspec.DecodeError(f"{path}: {error}") from error
