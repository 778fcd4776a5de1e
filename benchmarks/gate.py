"""Fail when a ratio has fallen by more than a tenth since it was stored.

    python -m benchmarks.gate var/bench/*.json [--store]

Each file is what a benchmark wrote with ``--json``. The stored ratios, ``benchmarks/ratios.json``,
are those of one processor each; a processor without any is measured and not judged. ``--store``
stores the ratios of these files in their place: after a change that was meant, or that gained.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.ratios import Run, read_run

STORED = Path(__file__).with_name("ratios.json")
TOLERANCE = 0.1
"""The part of a ratio that may be lost: what turns within one run differ by on a busy machine."""

Stored = dict[str, dict[str, float]]
"""By processor, then by the ratio's name."""


def find_losses(stored: Mapping[str, float], measured: Mapping[str, float]) -> list[str]:
    """Return a message for each ratio that has fallen by more than TOLERANCE. A ratio that is only
    in one of them does not count: peers are not installed everywhere."""
    losses = []
    for name, before in stored.items():
        now = measured.get(name, before)
        if now < before * (1 - TOLERANCE):
            losses.append(
                f"{name}: {now:.2f}, and {before:.2f} is stored ({now / before - 1:+.0%})"
            )
    return losses


def judge(stored: Stored, runs: Sequence[Run]) -> list[str]:
    """Return a message for each ratio of these runs that has fallen too far."""
    losses = []
    for run in runs:
        losses += find_losses(stored.get(run.processor, {}), run.ratios)
    return losses


def update(stored: Stored, runs: Sequence[Run]) -> Stored:
    """Return the stored ratios with those of these runs in their place."""
    updated = {processor: dict(ratios) for processor, ratios in stored.items()}
    for run in runs:
        updated.setdefault(run.processor, {}).update(run.ratios)
    return updated


def read_stored(path: Path) -> Stored:
    return msgspec.json.decode(path.read_bytes(), type=Stored) if path.exists() else {}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--stored", type=Path, default=STORED)
    parser.add_argument("--store", action="store_true", help="store the ratios of these files")
    args = parser.parse_args(argv)
    stored = read_stored(args.stored)
    try:
        runs = [read_run(path) for path in args.files]
    except (OSError, msgspec.DecodeError) as error:
        parser.error(f"{error}; give files that a benchmark wrote with --json")
    if args.store:
        text = msgspec.json.format(msgspec.json.encode(update(stored, runs), order="sorted"))
        args.stored.write_bytes(text + b"\n")
        return 0
    for processor in {run.processor for run in runs} - stored.keys():
        print(f"no ratios of {processor} are stored; --store stores these")
    for loss in (losses := judge(stored, runs)):
        print(loss, file=sys.stderr)
    return 1 if losses else 0


if __name__ == "__main__":
    sys.exit(main())
