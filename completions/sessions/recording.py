"""Records the answers of turns in their sessions, in the transaction that stores how they ended."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
from django.db.models import F
from msgspec import structs

from completions.batches.receipts.receipt import BuildOf, make_receipt
from completions.catalog import model_files
from completions.catalog.model_files import ModelFilesError
from completions.contract.job_request import JobRequest, encode_job_request
from completions.contract.json_lines import compress_lines
from completions.jobs.ended import EndedJob
from completions.models import Job, JobStatus, Session
from completions.requests.past import Computation, Turn, TurnChoice
from completions.responses.completion import CollectedResponse
from completions.responses.whole_response import collect

_UNSAID: Final[tuple[object, ...]] = (None, [], {})
"""Values of an answer's message that say nothing."""


def make_choices(collected: CollectedResponse) -> list[TurnChoice]:
    """Make the answers of a turn from all its events."""
    choices = []
    for record in collected.choices.records:
        made = collected.make_choice(record)
        message: Mapping[str, object] | None = made.get("message")
        if message is not None:
            message = {name: value for name, value in message.items() if value not in _UNSAID}
        choices.append(TurnChoice(record.token_ids, made["finish_reason"], message))
    return choices


def record_turns(ended: Sequence[EndedJob], build_of: BuildOf) -> None:
    """Add their answers to the turns among these jobs that have none yet, in the caller's
    transaction. Call it before the jobs' ends are stored."""
    by_id = {job.id: job for job in ended if job.stream}
    open_turns = Job.objects.filter(id__in=by_id, status=JobStatus.QUEUED)
    rows = list(open_turns.exclude(session=None).only("id", "session_id", "turn", "request"))
    grown: Counter[str] = Counter()
    for row in rows:
        job = by_id[row.id]
        before = len(row.turn or b"")
        row.turn = _add_answers(row.turn or b"", job, row.request, build_of)
        assert row.session_id is not None
        grown[row.session_id] += len(row.turn) - before + len(compress_lines(job.stream))
    Job.objects.bulk_update(rows, ["turn"])
    for session_id, size in sorted(grown.items()):
        Session.objects.filter(id=session_id).update(bytes=F("bytes") + size)


def _add_answers(
    content: bytes | memoryview, job: EndedJob, request_json: object, build_of: BuildOf
) -> bytes | memoryview:
    """Return the content of a turn with its answers, if it has any."""
    if job.state == "failed":
        return content
    request = msgspec.convert(request_json, JobRequest, str_keys=True)
    choices = make_choices(collect(job.id, job.context, job.stream))
    turn = structs.replace(Turn.decompress(content), choices=choices)
    shown = encode_job_request(structs.replace(request, prompts=()))
    receipt = _make_receipt(request, job, build_of)
    return turn.compress(Computation(msgspec.Raw(shown), receipt))


def _make_receipt(
    request: JobRequest, job: EndedJob, build_of: BuildOf
) -> Mapping[str, object] | None:
    """Make the receipt without the output; None if the model's files have been removed."""
    entry = model_files.load_catalog().get(job.model)
    try:
        files = model_files.load(entry) if entry else None
    except ModelFilesError:
        return None
    return make_receipt(request, files, (), build_of(job.worker)) if files else None
