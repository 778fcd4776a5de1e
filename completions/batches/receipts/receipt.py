"""The receipt of a line: all that its output depends on, as hashes, and the output's token ids."""

import hashlib
from collections.abc import Callable, Iterable, Sequence

import orjson

from completions.catalog.model_files import ModelFiles
from completions.contract.job_request import JobRequest
from completions.jobs.events import EndEvent, decode

BuildOf = Callable[[str], str | None]
"""The engine build of a worker, by the worker's id; None if it is no longer known."""


def make_receipt(
    request: JobRequest, files: ModelFiles, stream: Iterable[bytes], engine: str | None
) -> dict[str, object]:
    """Make the receipt of a job from its request and its events."""
    return {
        "model": files.entry.id,
        "weights": files.weight_version,
        "dtype": files.entry.dtype,
        "tokenizer": files.tokenizer_digest,
        "grammar": digest(request.grammar) if request.grammar is not None else None,
        "prompt": digest(request.prompts),
        "seed": request.sampling.seed,
        "close": request.close,
        "engine": engine,
        "output_ids": read_output_ids(stream),
    }


def digest(value: object) -> str:
    """Return the SHA-256 of a text, or of a JSON value in compact form."""
    data = value.encode() if isinstance(value, str) else orjson.dumps(value)
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def read_output_ids(stream: Iterable[bytes]) -> Sequence[Sequence[int]]:
    """Return the token ids of each choice, by its index."""
    ids: dict[int, list[int]] = {}
    for data in stream:
        event = decode(data)
        if not isinstance(event, EndEvent):
            for choice in event:
                ids.setdefault(choice.index, []).extend(choice.token_ids)
    return [ids[index] for index in sorted(ids)]
