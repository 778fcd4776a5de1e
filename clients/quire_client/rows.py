"""One prompt over many rows, as a batch that is read while it runs."""

import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from quire_client import batches
from quire_client.exchange import Body, Pause, QuireError, Send, Verb, request, retry

_CHAT = "/v1/chat/completions"


class RowBatch:
    """The batch of some rows, and which of them have been read."""

    def __init__(
        self,
        rows: Sequence[Any],
        prompt: Callable[[Any], Any],
        schema: Body | None,
        fields: Body,
    ) -> None:
        self._rows, self._prompt, self._schema, self._fields = rows, prompt, schema, fields
        self._batch: Body = {}
        self._seen: set[str] = set()
        self._pause = 0.0
        self.has_ended = not rows
        """Also before it begins, if there are no rows: a file without requests is refused."""

    def start(self) -> Verb[None]:
        """Upload the rows and make a batch of them."""
        if self.has_ended:
            return
        lines = [
            _make_line(number, self._prompt(row), self._schema, self._fields)
            for number, row in enumerate(self._rows)
        ]
        content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        sent = yield from request(
            "POST", "/files", data={"purpose": "batch"}, file=("file", ("rows.jsonl", content))
        )
        self._batch = yield from request(
            "POST",
            "/batches",
            {"input_file_id": sent["id"], "endpoint": _CHAT},
            headers={"Idempotency-Key": str(uuid.uuid4())},
        )

    def look(self) -> Verb[list[str]]:
        """Look at the batch, two seconds after the last look. Returns the files in which more rows
        have ended."""
        yield Pause(self._pause)
        self._pause = batches.LOOK_EVERY
        batch = self._batch = yield from request("GET", f"/batches/{self._batch['id']}")
        counts = batch["request_counts"]
        self.has_ended = batch["status"] in batches.ENDED
        # A read fetches all lines again, so the next one waits until there are a quarter more.
        if not self.has_ended and counts["completed"] + counts["failed"] <= len(self._seen) * 1.25:
            return []
        return list(filter(None, (batch["output_file_id"], batch["error_file_id"])))

    def read_file(self, file_id: str) -> Verb[list[tuple[Any, Any]]]:
        """Return the rows of a file that have ended since the last look, each with its answer,
        which may be a QuireError."""
        answer = yield from retry(Send("GET", f"/files/{file_id}/content"))
        lines = [json.loads(line) for line in answer.content.split(b"\n") if line]
        fresh = [line for line in lines if line["custom_id"] not in self._seen]
        self._seen.update(line["custom_id"] for line in fresh)
        return [
            (self._rows[int(line["custom_id"])], _parse_answer(line, self._schema))
            for line in fresh
        ]

    def check(self) -> None:
        """Raise QuireError if the batch failed as a whole."""
        if self._batch.get("status") == "failed":
            faults = (self._batch.get("errors") or {}).get("data") or [{}]
            raise QuireError(f"{self._batch['id']} failed: {faults[0].get('message')}")


def _make_line(number: int, prompt: Any, schema: Body | None, body: Body) -> Body:
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    fields = {"messages": messages, **body}
    if schema is not None:
        fields["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema},
        }
    return {"custom_id": str(number), "method": "POST", "url": _CHAT, "body": fields}


def _parse_answer(line: Body, schema: Body | None) -> Any:
    """Return the text of a line's answer, or with a schema its JSON value, or a QuireError."""
    response = line.get("response") or {}
    failure = line.get("error") or (response.get("body") or {}).get("error")
    if failure:
        return QuireError(
            str(failure.get("message")), response.get("status_code") or 0, failure.get("code")
        )
    (choice, *_) = response["body"]["choices"]
    text = choice["message"]["content"]
    if schema is None:
        return text
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return QuireError(f"the answer ended with {choice['finish_reason']}: {text}")
