"""A file of requests becomes a batch: uploaded once, submitted once, however often it is tried."""

import hashlib
import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire_client.exchange import Body, QuireError, Verb, request

PART_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Note:
    """A record of what `submit` has done with a file, kept in another file beside it: first
    `upload` and `parts`, then `file`, then `batches` by their options."""

    path: Path
    values: Body

    @classmethod
    def for_file(cls, file: Path, url: str) -> "Note":
        """Return the note about the same content on the same server, or a new one."""
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        same = {"url": url, "sha256": digest}
        path = file.with_name(f"{file.name}.quire")
        try:
            values = json.loads(path.read_text())
        except (OSError, ValueError):
            values = {}
        if {name: values.get(name) for name in same} != same:
            values = {**same, "parts": [], "batches": {}}
        return cls(path, values)

    def keep(self, **values: Any) -> None:
        self.values.update(values)
        part = self.path.with_name(f"{self.path.name}.new")
        part.write_text(json.dumps(self.values))
        part.replace(self.path)


def _upload(file: Path, note: Note) -> Verb[str]:
    """Upload a file, if it is not uploaded yet. Returns its id."""
    if file_id := note.values.get("file"):
        return str(file_id)
    size = file.stat().st_size
    if size <= PART_BYTES:
        answer = yield from request(
            "POST",
            "/files",
            data={"purpose": "batch"},
            file=("file", (file.name[:255], file.read_bytes())),
        )
        note.keep(file=answer["id"])
        return str(answer["id"])
    try:
        stored = yield from _upload_in_parts(file, size, note)
    except QuireError as error:
        if error.code not in ("upload_not_found", "upload_not_pending"):
            raise
        stored = None
    if stored is None:  # the upload or its file has expired: begin again
        note.keep(upload=None, parts=[])
        stored = yield from _upload_in_parts(file, size, note)
        if stored is None:
            raise QuireError(f"the service deleted the upload of {file} at once")
    note.keep(file=stored)
    return stored


def _upload_in_parts(file: Path, size: int, note: Note) -> Verb[str | None]:
    """Send the parts that are missing. Returns the file's id; None if the file was deleted since
    an earlier client completed the upload."""
    if not note.values.get("upload"):
        begun = yield from request(
            "POST",
            "/uploads",
            {
                "filename": file.name[:255],
                "purpose": "batch",
                "bytes": size,
                "mime_type": "application/jsonl",
            },
        )
        note.keep(upload=begun["id"], parts=[], part_bytes=PART_BYTES)
    path, parts = f"/uploads/{note.values['upload']}", list(note.values["parts"])
    part_bytes = note.values["part_bytes"]  # an older client's parts may have another size
    with file.open("rb") as content:
        content.seek(len(parts) * part_bytes)
        while piece := content.read(part_bytes):
            part = yield from request("POST", f"{path}/parts", file=("data", ("part", piece)))
            parts.append(part["id"])
            note.keep(parts=parts)
    done = yield from request("POST", f"{path}/complete", {"part_ids": parts})
    return str(done["file"]["id"]) if done["file"] else None


def submit_file(file: Path, url: str, options: Body) -> Verb[Body]:
    """Submit a file. Returns its batch, the same one if it was submitted before."""
    options = {"endpoint": _read_first_url(file), "completion_window": "24h", **options}
    note = Note.for_file(file, url)
    batches, name = note.values["batches"], json.dumps(options, sort_keys=True)
    entry = batches.setdefault(name, {"key": str(uuid.uuid4())})
    if "id" in entry:
        try:
            current: Body = yield from request("GET", f"/batches/{entry['id']}")
            return current
        except QuireError as error:
            if error.code != "batch_not_found":
                raise
            raise QuireError(
                f"{file} was submitted as {entry['id']}, which this key cannot see: use the key "
                f"that submitted it, or delete {note.path} to run all lines again",
                error.status,
                error.code,
            ) from error
    batch = yield from _create(file, note, options, {"Idempotency-Key": entry["key"]})
    entry["id"] = batch["id"]
    note.keep()
    return batch


def forecast(file: Path, url: str, options: Body) -> Verb[Body]:
    """Return the forecast of a file, or with a pilot its batch. A later submission uses the same
    upload."""
    options = {
        "endpoint": _read_first_url(file),
        "completion_window": "24h",
        "dry_run": True,
        **options,
    }
    if options.get("pilot") is not None:  # its lines must not run twice
        return (yield from submit_file(file, url, options))
    return (yield from _create(file, Note.for_file(file, url), options, {}))


def _create(file: Path, note: Note, options: Body, headers: Mapping[str, str]) -> Verb[Body]:
    """Upload a file, if it is not uploaded yet, and make a batch of it. Returns the answer."""
    try:
        return (yield from _post(file, note, options, headers))
    except QuireError as error:
        if error.code != "file_not_found":
            raise
    note.keep(file=None, upload=None, parts=[])  # it expired, or was deleted: upload it again
    return (yield from _post(file, note, options, headers))


def _post(file: Path, note: Note, options: Body, headers: Mapping[str, str]) -> Verb[Body]:
    file_id = yield from _upload(file, note)
    note.keep()  # the idempotency key, before it is used
    body = {"input_file_id": file_id, **options}
    return (yield from request("POST", "/batches", body, headers=headers))


def _read_first_url(file: Path) -> str:
    """Return the url of the first line that is not blank, or a default. The server explains what
    is wrong with such a line."""
    with (
        # Only a line feed ends a line: for JSON, a carriage return is a space.
        file.open(encoding="utf-8-sig", newline="\n") as lines,
        suppress(ValueError, KeyError, TypeError, StopIteration, RecursionError),
    ):
        return str(json.loads(next(line for line in lines if line.strip()))["url"])
    return "/v1/completions"
