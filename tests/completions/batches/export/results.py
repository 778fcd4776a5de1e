"""Files of an ended batch, as the service writes them."""

import io
import json
from functools import partial

from completions.batches.export.rows import Source

BATCH = "batch_0123456789abcdef0123456789abcdef"


def request(custom_id, schema=None, **body):
    if schema is not None:
        body["response_format"] = {
            "type": "json_schema", "json_schema": {"name": "x", "schema": schema},
        }  # fmt: skip
    return {
        "custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions",
        "body": {"model": "tiny", "messages": [], **body},
    }  # fmt: skip


def answer(number, custom_id, text, finish_reason="stop", **others):
    choice = {"index": 0, "message": {"role": "assistant", "content": text}}
    body = {
        "choices": [{**choice, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3},
    }
    response = {"status_code": 200, "request_id": "req", "body": body}
    return _line(number, custom_id, response=response, error=None, **others)


def refusal(number, custom_id, code="decimal_above_max_value"):
    body = {"error": {"code": code, "message": "too much", "param": "temperature"}}
    response = {"status_code": 400, "request_id": "req", "body": body}
    return _line(number, custom_id, response=response, error=None)


def unanswered(number, custom_id):
    error = {"code": "batch_cancelled", "message": "It was cancelled."}
    return _line(number, custom_id, response=None, error=error)


def _line(number, custom_id, **others):
    name = BATCH.replace("batch_", "batch_req_")
    return {"id": f"{name}-{number}", "custom_id": custom_id, **others, "meta": {"attempts": 1}}


def source(requests, output, errors=(), receipts=False):
    def opened(lines):
        return partial(io.BytesIO, b"".join(json.dumps(each).encode() + b"\n" for each in lines))

    return Source(BATCH, receipts, opened(requests), [opened(output), opened(errors)])
