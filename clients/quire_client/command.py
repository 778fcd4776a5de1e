"""The command: `quire VERB ...`."""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from quire_client.batches import ENDED, FORMATS
from quire_client.clients import Quire
from quire_client.exchange import Body, QuireError
from quire_client.progress import Progress, Report

SAY_EVERY = 10.0
"""Seconds between two lines of progress if the output is not a terminal."""


class _Bar:
    """Shows progress on standard error: a bar on a terminal, otherwise a line every ten seconds."""

    WIDTH = 30

    def __init__(self) -> None:
        self._said = 0.0
        self._drawn = False

    def __call__(self, progress: Progress) -> None:
        if sys.stderr.isatty():
            full = round(progress.share * self.WIDTH)
            bar = "#" * full + "." * (self.WIDTH - full)
            print(f"\r\x1b[K[{bar}] {progress}", end="", file=sys.stderr, flush=True)
            self._drawn = True
        elif time.monotonic() - self._said >= SAY_EVERY or progress.status in ENDED:
            self._said = time.monotonic()
            print(progress, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._drawn:
            print(file=sys.stderr)


def _wait(watch: Callable[[str, Report], Body], batch_id: str) -> Body:
    bar = _Bar()
    try:
        return watch(batch_id, bar)
    finally:
        bar.end()


def _deliver(quire: Quire, batch: Body, stem: Path) -> int:
    """Write the results. Returns the exit code: 1 unless the batch completed."""
    for path in quire.fetch(batch["id"], stem):
        print(path)
    _print_faults(batch)
    if batch["status"] != "completed":
        print(f"{batch['id']} is {batch['status']}", file=sys.stderr)
        return 1
    return 0


def _print_faults(batch: Body) -> None:
    for fault in (batch.get("errors") or {}).get("data") or []:
        print(f"line {fault.get('line')}: {fault.get('message')}", file=sys.stderr)


def _require_file(file: Path) -> Path:
    if not file.is_file():
        raise QuireError(f"{file} is not a file")
    return file


def _submit(quire: Quire, options: argparse.Namespace) -> int:
    file = _require_file(options.file)
    batch = quire.submit(file, **_make_fields(options))
    if not options.wait:
        print(batch["id"])
        return 0
    print(f"{file} is {batch['id']}", file=sys.stderr)
    code = _deliver(quire, _wait(quire.watch, batch["id"]), file.with_suffix(""))
    file.with_name(f"{file.name}.quire").unlink(missing_ok=True)
    return code


def _rehearse(quire: Quire, options: argparse.Namespace) -> int:
    """Print a forecast. Returns the exit code: 1 if the batch would not run."""
    found = quire.dry_run(_require_file(options.file), **_make_fields(options))
    if options.pilot is None:
        print(json.dumps(found, indent=2))
        return 0 if found["would_run"] else 1
    batch = _wait(quire.watch_pilot, found["id"])
    if batch["status"] == "failed":
        _print_faults(batch)
        return 1
    print(json.dumps(batch["forecast"], indent=2))
    print(f"{batch['id']} is held; quire start {batch['id']} runs the rest", file=sys.stderr)
    return 0


def _list(quire: Quire, options: argparse.Namespace) -> int:
    for batch in quire.list(options.limit):
        counts = batch["request_counts"]
        done = f"{counts['completed'] + counts['failed']}/{counts['total']}"
        name = (batch["metadata"] or {}).get("name", "")
        print(f"{batch['id']}  {batch['status']:<11}  {done}  {name}".rstrip())
    return 0


def _make_fields(options: argparse.Namespace) -> Body:
    """Return the fields of a batch that the command line sets."""
    fields = {
        "endpoint": options.endpoint,
        "completion_window": options.window,
        "on_invalid": options.on_invalid,
        "on_late": options.on_late,
        "pilot": options.pilot,
        "metadata": {"name": options.name} if options.name else None,
        "receipts": options.receipts or None,
        "close": options.close or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "quire",
        description="Batches of a Quire service, from another machine.",
        epilog="Environment: QUIRE_BASE_URL (default http://localhost:8000/v1), QUIRE_API_KEY.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    submit = verbs.add_parser("submit", help="upload a file of requests and run it as a batch")
    submit.add_argument("--wait", action="store_true", help="show progress, write the results")
    rehearse = verbs.add_parser(
        "dry-run", help="validate a file, and print a forecast of its tokens, cost and time"
    )
    for each in (submit, rehearse):
        each.add_argument("file", type=Path)
        each.add_argument("--endpoint", help="default: the url of the first line")
        each.add_argument("--window", default="24h", help="1m to 7d; default: 24h")
        each.add_argument("--on-invalid", choices=("skip", "fail"), default="skip")
        each.add_argument("--on-late", choices=("accept", "refuse"))
        each.add_argument("--name", help="shown in lists of batches")
        each.add_argument(
            "--pilot",
            type=int,
            metavar="N",
            help="run N random lines first, to narrow the forecast",
        )
        each.add_argument("--receipts", action="store_true", help="one for each answered line")
        each.add_argument(
            "--close",
            action="store_true",
            help="constrained answers are whole texts also where max_tokens ends them",
        )
    fetch = verbs.add_parser("fetch", help="write the results of a batch")
    fetch.add_argument("batch")
    fetch.add_argument("--to", type=Path, metavar="STEM", help="default: the batch's id")
    export = verbs.add_parser("export", help="write the results of an ended batch as rows")
    export.add_argument("batch")
    names = " or ".join(f"FILE.{name}" for name in FORMATS)
    export.add_argument("--to", type=Path, required=True, metavar="FILE", help=names)
    listing = verbs.add_parser("list", help="list the newest batches")
    listing.add_argument("--limit", type=int, default=20, help="at most 100; default: 20")
    for verb, what in (
        ("start", "run the lines that a dry run with --pilot has not run"),
        ("watch", "show the progress of a batch until it has ended"),
        ("cancel", "cancel a batch; its results so far are kept"),
        ("resubmit", "run the failed lines of a batch again; prints the new batch's id"),
    ):
        verbs.add_parser(verb, help=what).add_argument("batch")
    return parser


def _run(quire: Quire, options: argparse.Namespace) -> int:
    match options.verb:
        case "submit":
            return _submit(quire, options)
        case "dry-run":
            return _rehearse(quire, options)
        case "list":
            return _list(quire, options)
        case "export":
            print(quire.export(options.batch, options.to))
        case "start":
            print(quire.start(options.batch)["status"])
        case "fetch":
            return _deliver(quire, quire.get(options.batch), options.to or Path(options.batch))
        case "watch":
            return 0 if _wait(quire.watch, options.batch)["status"] == "completed" else 1
        case "cancel":
            print(quire.cancel(options.batch)["status"])
        case _:
            print(quire.resubmit(options.batch)["id"])
    return 0


def run() -> NoReturn:
    """Run the command and exit with its code, which zipapp would drop if it were returned."""
    sys.exit(main())


def main(argv: Sequence[str] | None = None) -> int:
    options = _make_parser().parse_args(argv)
    try:
        with Quire() as quire:
            code = _run(quire, options)
            sys.stdout.flush()
            return code
    except QuireError as error:
        print(f"quire: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 1
    except KeyboardInterrupt:
        print("\nquire: run the same command again to continue", file=sys.stderr)
        return 130
