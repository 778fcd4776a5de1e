"""A batch that runs, and the files that it writes."""

import uuid
from collections.abc import Callable
from pathlib import Path

from quire_client.exchange import Body, Pause, QuireError, Save, Verb, request, retry
from quire_client.progress import Report, make_progress

ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
FORMATS = ("jsonl", "csv", "parquet")
LOOK_EVERY = 2.0
"""Seconds between two looks at a batch."""


def has_ended(batch: Body) -> bool:
    return batch["status"] in ENDED


def has_piloted(batch: Body) -> bool:
    """Return whether a batch waits after its pilot, or has ended."""
    if has_ended(batch):
        return True
    counts, forecast = batch["request_counts"], batch.get("forecast")
    if batch["status"] == "validating" or not forecast:
        return False
    done = counts["completed"] + counts["failed"]
    return bool(done >= batch["pilot"] + forecast["invalid_lines"])


def watch(
    batch_id: str, report: Report | None, until: Callable[[Body], bool] = has_ended
) -> Verb[Body]:
    """Wait until a batch has ended, or something else is true of it. Returns it."""
    prices: Body | None = None
    while True:
        batch: Body = yield from request("GET", f"/batches/{batch_id}")
        if report is not None:
            if prices is None and batch.get("model"):
                prices = yield from _load_prices(batch["model"])
            report(make_progress(batch, prices))
        if until(batch):
            return batch
        yield Pause(LOOK_EVERY)


def _load_prices(model: str) -> Verb[Body | None]:
    """Return the prices of a model; none if the key may not see it, or it is no longer served. None
    if the service failed: the next look asks again."""
    try:
        answer = yield from request("GET", f"/models/{model}")
    except QuireError as error:
        return {} if error.status in (403, 404) else None
    return answer.get("prices_per_million_tokens") or {}


def fetch(batch_id: str, stem: Path) -> Verb[list[Path]]:
    """Write the output and the errors to `STEM.output.jsonl` and `STEM.errors.jsonl`."""
    batch, paths = (yield from request("GET", f"/batches/{batch_id}")), []
    for name, kind in (("output_file_id", "output"), ("error_file_id", "errors")):
        if file_id := batch.get(name):
            target = stem.with_name(f"{stem.name}.{kind}.jsonl")
            # What a running batch has so far is not the beginning of the file at its end.
            is_final = batch["status"] in ENDED
            part = target.with_name(f".{target.name}.{file_id}{'' if is_final else '.so-far'}")
            yield from retry(Save(f"/files/{file_id}/content", part, is_final))
            part.replace(target)
            paths.append(target)
    return paths


def export(batch_id: str, target: Path) -> Verb[Path]:
    """Write the results as rows to a file, whose suffix is one of FORMATS."""
    name = target.suffix[1:]
    if name not in FORMATS:
        names = ", ".join(f"FILE.{each}" for each in FORMATS)
        raise QuireError(f"{target} is none of {names}")
    part = target.with_name(f".{target.name}.{batch_id}")
    try:
        yield from retry(Save(f"/batches/{batch_id}/export?format={name}", part, False))
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return target


def list_newest(limit: int) -> Verb[list[Body]]:
    """Return the newest batches."""
    return list((yield from request("GET", f"/batches?limit={limit}"))["data"])


def resubmit(batch_id: str) -> Verb[Body]:
    """Make a batch of another one's failed lines: a single one, also if an answer is lost."""
    headers = {"Idempotency-Key": str(uuid.uuid4())}
    return (yield from request("POST", f"/batches/{batch_id}/resubmit", headers=headers))
