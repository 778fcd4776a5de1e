"""Finds the request for each line of an output file."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from completions.batches import files
from completions.batches.input_lines import decode_line, is_blank, split_lines
from completions.batches.lines import get_text
from completions.batches.receipts import trajectory
from completions.batches.results.answers import list_choices
from completions.models import Batch, File

_OF_A_RECEIPT = (
    "model",
    "weights",
    "dtype",
    "tokenizer",
    "grammar",
    "prompt",
    "seed",
    "engine",
    "output_ids",
)
_OF_A_CHOICE = ("token_ids", "token_mask", "text", "finish_reason", "matched_stop")
_MAX_ID = 2**32 - 1


class SourceError(Exception):
    """A file is missing or does not belong to a batch. The message is for the operator."""


class Receipted(NamedTuple):
    """A line of an output file that has a receipt, and the body of its request."""

    custom_id: str
    endpoint: str
    body: dict[str, object]
    receipt: Mapping[str, Any]
    answer: Mapping[str, object]
    """The body of the response."""
    grammar: str | None = None
    """The grammar, where the line has it beside the request that it was made from."""


def read_receipted(output: Path, requests: Path | None) -> Iterator[Receipted]:
    """Yield the lines with receipts in the order of the requests. Raises SourceError.

    Reads the requests from a file or, without one, from the service's stored batch. A session's
    trajectory has its own.
    """
    if trajectory.is_trajectory(output):
        yield from _read_trajectory(output)
        return
    answers = _read_answers(output)
    if not answers:
        raise SourceError(f"{output} has no line with a receipt; run the batch with receipts")
    with _open_requests(requests, output, answers) as lines:
        for number, text in enumerate(split_lines(lines), 1):
            if is_blank(text):
                continue
            custom_id, url, body = _parse_request(number, text)
            answer = answers.pop(custom_id, None)
            if answer is not None:
                yield Receipted(custom_id, url, body, answer["receipt"], answer["response"]["body"])
    if answers:
        missing = ", ".join(sorted(answers)[:3])
        raise SourceError(f"the requests of {len(answers)} lines are missing: {missing}")


def _read_trajectory(output: Path) -> Iterator[Receipted]:
    """Yield the turns of a trajectory, each as a completion of all tokens before its answers."""
    try:
        for line, prompt in trajectory.read_turns(output):
            body = {**line["request"], "model": line["model"], "prompt": prompt}
            if line["grammar"] is not None:
                body["grammar"] = trajectory.make_constraint(line["grammar"])
            choices = [_take_checked(each) for each in line["choices"]]
            _check(line["receipt"], choices)
            yield Receipted(
                line["turn"],
                "/v1/completions",
                body,
                line["receipt"],
                {"choices": choices},
                line["grammar"],
            )
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise SourceError(f"{output} is not a session's trajectory: {error!r}") from error


def _take_checked(choice: Mapping[str, object]) -> dict[str, object]:
    """Return what is checked of a choice of a trajectory. A completion has no message."""
    taken = {name: choice[name] for name in _OF_A_CHOICE}
    message = choice["message"]
    return taken if message is None else {**taken, "message": message}


def _parse_request(number: int, text: bytes) -> tuple[str, str, dict[str, object]]:
    """Parse the custom_id, the url and the body of a line."""
    try:
        line = json.loads(decode_line(text))
        return str(line["custom_id"]), line["url"], line["body"]
    except (ValueError, LookupError, TypeError) as error:
        message = f"line {number} of the requests is not a request of a batch"
        raise SourceError(message) from error


def _read_answers(output: Path) -> dict[str, Any]:
    """Read the lines with receipts, by custom_id."""
    answers, number = {}, 0
    try:
        with output.open("rb") as lines:
            for text in split_lines(lines):
                number += 1
                line = json.loads(text)
                if line.get("receipt"):
                    _check(line["receipt"], list_choices(line["response"]["body"]))
                    answers[str(line["custom_id"])] = line
    except OSError as error:
        raise SourceError(f"{output} cannot be read: {error}") from error
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise SourceError(f"{output}, line {number}: not a line of an output file") from error
    return answers


def _check(receipt: Mapping[str, Any], choices: Sequence[Mapping[str, Any]]) -> None:
    """Check the form of a receipt and of the choices beside it. Raises ValueError, TypeError,
    LookupError and AttributeError."""
    _ = [receipt[name] for name in _OF_A_RECEIPT]
    for ids in receipt["output_ids"]:
        if not all(type(id) is int and 0 <= id <= _MAX_ID for id in ids):
            raise ValueError("its output is not made of token ids")
    for choice in choices:
        _ = choice["finish_reason"]
        text = choice["text"] if "text" in choice else get_text(choice)
        message = choice.get("message", {})
        for value in (text, message.get("content"), message.get("reasoning_content")):
            if not isinstance(value, str | None):
                raise TypeError("its text is another value")
        if not isinstance(choice.get("token_mask"), list | None):
            raise TypeError("its token_mask is another value")


@contextmanager
def _open_requests(
    requests: Path | None, output: Path, answers: Mapping[str, Any]
) -> Iterator[IO[bytes]]:
    if requests is not None:
        if not requests.is_file():
            raise SourceError(f"{requests} is not a file")
        with requests.open("rb") as lines:
            yield lines
        return
    name = str(next(iter(answers.values()))["id"])
    batch_id = f"batch_{name.removeprefix('batch_req_').rpartition('-')[0]}"
    sent = Batch.objects.filter(id=batch_id).values("input_file_id")
    try:
        opened = files.open_file(File.objects.get(id__in=sent))
    except File.DoesNotExist as error:
        message = f"the service has no input file for {output}; name it with --requests"
        raise SourceError(message) from error
    with opened as lines:
        yield lines
