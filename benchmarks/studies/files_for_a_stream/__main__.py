"""The files of Quire that one streamed completion runs, beyond those that run anyway.

    python -m benchmarks.studies.files_for_a_stream [--model FOLDER] [--idle 65]

A whole installation with the real engine records the files whose functions are called in the web
process and in the engine worker: while it is idle, for longer than the slowest periodic task waits,
and while it answers one streamed completion. A completion before that fills caches and loads what
is loaded late. The background worker is left out: it settles every ended job in the same way.
"""

import json
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import httpx

from benchmarks import command_line
from benchmarks.service.installation import MODEL, Installation, installation

RECORDER = Path(__file__).with_name("recorder")
PROCESSES = ("web", "worker")
_LOOK_EVERY = 0.1
_TIMEOUT = 60.0


def read_recording(folder: Path, name: str, pids: Iterable[int]) -> set[str]:
    """Ask the recorders for what ran since the last time. Returns paths from the root."""
    (folder / f"{name}.request").touch()
    answers = [folder / f"{name}.{pid}" for pid in pids]
    deadline = time.monotonic() + _TIMEOUT
    while not all(answer.exists() for answer in answers):
        if time.monotonic() > deadline:
            raise SystemExit("a process does not answer: its recorder did not start")
        time.sleep(_LOOK_EVERY)
    return {path for answer in answers for path in json.loads(answer.read_text())}


def stream(service: Installation, seed: int) -> None:
    """Stream a completion of token ids to its end, on a connection of its own."""
    body = {"model": MODEL, "prompt": [1, 2, 3, 4], "max_tokens": 8, "seed": seed, "stream": True}
    answer = httpx.post(
        f"{service.url}/v1/completions", json=body, headers=service.headers, timeout=_TIMEOUT
    )
    answer.raise_for_status()
    assert answer.text.endswith("data: [DONE]\n\n"), answer.text


def find_files(service: Installation, folder: Path, idle: float) -> set[str]:
    """Return the files that a stream runs and that an idle installation does not."""
    pids = [service.pids[name] for name in PROCESSES]
    stream(service, 1)
    time.sleep(1)  # the end of the first stream is no part of the idle time
    read_recording(folder, "start", pids)
    time.sleep(idle)
    anyway = read_recording(folder, "idle", pids)
    stream(service, 2)
    time.sleep(1)
    return read_recording(folder, "stream", pids) - anyway


def main() -> None:
    parser = command_line.parser(__doc__, model="", idle=65.0)
    args = parser.parse_args()
    entry: dict[str, int | str] = {"max_model_len": 512}
    if args.model:
        entry["path"] = str(Path(args.model).resolve())
    with tempfile.TemporaryDirectory(prefix="quire-files-") as folder:
        settings = {"RECORD_FILES": folder, "PYTHONPATH": str(RECORDER)}
        with installation(entry, settings=settings) as service:
            files = find_files(service, Path(folder), args.idle)
    for file in sorted(files):
        print(file)
    print(f"{len(files)} files", file=sys.stderr)


if __name__ == "__main__":
    main()
