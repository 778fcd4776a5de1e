"""Plot the benchmarks: tokens per second by batch size, and milliseconds of a step by phase.

    python -m benchmarks.peers.plot PEERS.json ENGINE.json OUT.png

PEERS.json is what ``benchmarks.peers --json`` wrote, ENGINE.json what ``benchmarks.engine --json``
wrote. Needs matplotlib, which the project does not install: ``pip install matplotlib``.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Line = tuple[list[int], list[float]]
"""Batch sizes, and a figure for each."""


def rates(tables: Sequence[dict[str, Any]]) -> dict[str, Line]:
    """Return tokens per second by contender, from the tables of ``benchmarks.peers`` that have
    short prompts. Runs under a regular expression are Quire's only."""
    lines: dict[str, Line] = {}
    for table in tables:
        if table["name"] not in ("64+64", "regex"):
            continue
        for row in table["rows"]:
            for name, rate in row["median"].items():
                if table["name"] == "regex":
                    if name != "quire":
                        continue
                    name = "quire, constrained"
                if rate is not None:
                    batches, figures = lines.setdefault(name, ([], []))
                    batches.append(row["batch"])
                    figures.append(rate)
    return lines


def phases(rows: Sequence[dict[str, Any]]) -> dict[str, Line]:
    """Milliseconds of a step by phase, from the rows of ``benchmarks.engine``."""
    lines: dict[str, Line] = {}
    for row in rows:
        for phase, milliseconds in row["step_ms"].items():
            batches, figures = lines.setdefault(phase, ([], []))
            batches.append(row["batch"])
            figures.append(milliseconds)
    return lines


def draw(by_contender: dict[str, Line], by_phase: dict[str, Line], out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    for name, (batches, figures) in by_contender.items():
        left.plot(batches, figures, marker="o", label=name)
    left.set(xlabel="sequences at once", ylabel="tokens/s", title="Throughput", ylim=(0, None))
    left.legend()
    floor: list[float] | None = None
    for name, (batches, figures) in by_phase.items():
        right.bar([str(batch) for batch in batches], figures, bottom=floor, label=name)
        floor = [a + b for a, b in zip(floor or [0.0] * len(figures), figures, strict=True)]
    right.set(xlabel="sequences at once", ylabel="ms", title="A step of the engine")
    right.legend()
    figure.savefig(out, dpi=110)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("peers", type=Path)
    parser.add_argument("engine", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args(argv)
    tables, engine = (json.loads(path.read_text()) for path in (args.peers, args.engine))
    try:
        draw(rates(tables), phases(engine["rows"]), args.out)
    except ImportError:
        print("benchmarks.peers.plot needs matplotlib: pip install matplotlib", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
