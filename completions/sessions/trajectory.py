"""A session as JSON Lines, one turn on each: what was given, what was sampled, and what computed
it."""

from collections.abc import Mapping
from typing import Any

import msgspec
import orjson

from completions.batches.receipts.receipt import read_output_ids
from completions.contract.adapters import read_name
from completions.contract.json_lines import decompress_lines
from completions.contract.sampling import INTEGERS
from completions.contract.token_origins import make_mask
from completions.models import Job
from completions.requests.past import Computation, Turn, make_choice_id
from completions.responses.choice_record import ABORT, ChoiceRecord
from completions.responses.whole_response import collect


def make_line(job: Job, choice: int | None) -> dict[str, object]:
    """Make the line of a turn. `choice` is the one that the path goes on from, in the trajectory
    of one path."""
    turn = Turn.decompress(job.turn or b"")
    computation = Computation.decompress(job.turn or b"")
    request = None if computation is None else msgspec.json.decode(computation.request)
    after = make_choice_id(job.after_turn, job.after_index) if job.after_turn else None
    line: dict[str, object] = {
        "session": job.session_id,
        "turn": job.id,
        "after": after,
        "created_at": int(job.created_at.timestamp()),
        "status": job.status,
        "model": job.model,
        "given": {"token_ids": turn.token_ids, "messages": turn.messages},
        "drift": turn.drift,
        "rebased": turn.is_rebased,
        "choices": [],
        "request": None if request is None else _make_body(request),
        "grammar": None if request is None else request.get("grammar"),
        "receipt": None,
    }
    if choice is not None:
        line["choice"] = choice
    if job.events is None or computation is None:
        return line
    stream = decompress_lines(job.events)
    collected = collect(job.id, orjson.dumps(job.context), stream)
    messages = [each.message for each in turn.choices]
    line["choices"] = [
        _make_choice(job, record, message)
        for record, message in zip(collected.choices.records, messages, strict=True)
    ]
    if computation.receipt is not None:
        line["receipt"] = {**computation.receipt, "output_ids": read_output_ids(stream)}
    return line


def _make_choice(
    job: Job, record: ChoiceRecord, message: Mapping[str, object] | None
) -> dict[str, object]:
    made: dict[str, object] = {
        "id": make_choice_id(job.id, record.index),
        "token_ids": record.token_ids,
        "token_mask": make_mask(len(record.token_ids), record.forced),
        "logprobs": record.scores or None,
        "text": "".join(record.texts),
        "message": message,
        "finish_reason": record.finish_reason or ABORT,
        "matched_stop": record.matched_stop,
    }
    if record.routed_experts is not None:
        made["routed_experts"] = record.routed_experts
    return made


def _make_body(request: Mapping[str, Any]) -> dict[str, object]:
    """Make the body of a completion that computes the same after the same tokens under the same
    grammar, without either. `request` is the JSON of a `JobRequest`, which leaves out defaults."""
    body = {"max_tokens": INTEGERS["max_tokens"].default, **request.get("sampling", {})}
    body.pop("stop_spans", None)
    if request.get("close"):
        body["close"] = True
    if request.get("adapters"):
        body["lora_path"] = read_name(request["adapters"][0])
    return body
