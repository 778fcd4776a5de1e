"""An ended batch with its files and their index."""

import json
from collections.abc import Sequence
from datetime import timedelta
from tempfile import TemporaryFile
from typing import Any

from django.core.files.base import ContentFile
from django.utils import timezone

from completions.batches import files, lines, writing
from completions.batches.counted_fields import find_counted_fields
from completions.batches.results.index import Index
from completions.batches.summary import Summary
from completions.models import ApiKey, Batch, BatchLine, BatchStatus, File, FilePurpose

WORDS = ("red", "Green", "blue \N{SNOWMAN}", "grey")


MOODS = ("good", "bad", "mixed")
REVIEW = {
    "type": "object",
    "properties": {"mood": {"enum": list(MOODS)}, "stars": {"type": "integer"}},
    "required": ["mood", "stars"],
    "additionalProperties": False,
}


def reviewed_batch(key: ApiKey, count: int) -> Batch:
    """Make an ended batch like that of `ended_batch`, whose answers follow REVIEW: their moods are
    those of MOODS in turn, and max_tokens cut some in the mood."""
    texts = [json.dumps({"mood": MOODS[n % 3], "stars": n}) for n in range(1, count + 1)]
    cut = [text[:12] if is_cut(number) else text for number, text in enumerate(texts, 1)]
    return ended_batch(key, count, cut, REVIEW)


def is_cut(number: int) -> bool:
    return number % 7 == 0


def ended_batch(
    key: ApiKey, count: int, texts: Sequence[str] = (), schema: dict[str, Any] | None = None
) -> Batch:
    """Make an ended batch of `count` lines. Every tenth line failed, and every seventh of the
    others was cut. Answers contain the words of WORDS in turn; only the last line contains
    "needle". The first lines have `texts` as answers, and as keys and values in their requests."""
    now = timezone.now()
    whose = {"organization": key.organization, "api_key": key}
    sent = [
        {
            "custom_id": f"line-{n}",
            "method": "POST",
            "url": "/v1/completions",
            "body": {"model": "tiny", "prompt": [n % 200], "max_tokens": 3},
        }
        for n in range(1, count + 1)
    ]
    for line, text in zip(sent, texts, strict=False):
        if schema is not None:
            line["body"] |= {"json_schema": schema}  # type: ignore[operator]
            continue
        line["body"] |= {"prompt": text, "metadata": {text[:200]: [[[text[:200]]]]}}  # type: ignore[operator]
    content = "".join(json.dumps(each) + "\n" for each in sent).encode()
    file = File(**whose, filename="in.jsonl", purpose=FilePurpose.BATCH)
    files.store(file, ContentFile(content), timedelta(days=1))
    # Ended from the start, so that a service beside the test does not write its files too.
    batch = Batch.objects.create(
        **whose,
        endpoint="/v1/completions",
        model="tiny",
        job_prefix="cmpl-",
        input_file_id=file.id,
        completion_window="24h",
        output_seconds=86400,
        status=BatchStatus.COMPLETED,
        total=count,
        failed=count // 10,
        completed=count - count // 10,
        in_progress_at=now,
        ended_at=now,
        expires_at=now + timedelta(hours=24),
    )
    fields = find_counted_fields(schema) if schema is not None else None
    index, summary = Index(), Summary(fields)
    with TemporaryFile() as output, TemporaryFile() as errors:
        for number in range(1, count + 1):
            content = errors if number % 10 == 0 else output
            result = _result(number, count, texts[number - 1] if number <= len(texts) else None)
            line = BatchLine(batch=batch, number=number, custom_id=f"line-{number}")
            text = lines.output_line(batch, line, result)
            summary.add(result)
            index.add(number, content is output, result, content.tell(), len(text))
            content.write(text)
        writing.store(batch, batch.output_file_id, output, now)
        writing.store(batch, batch.error_file_id, errors, now)
    assert index.store(batch, lambda: True)
    batch.summary, batch.counted_fields = summary.as_dict(), fields
    batch.save()
    return batch


def _result(number: int, count: int, text: str | None) -> dict[str, Any]:
    failed = number % 10 == 0
    word = "needle" if number == count else WORDS[number % len(WORDS)]
    choice = {
        "index": 0,
        "text": text or f"{word} {number} " + "x" * 300,
        "finish_reason": "length" if is_cut(number) else "stop",
    }
    body: dict[str, Any] = {
        "choices": [choice],
        "usage": {"prompt_tokens": 1, "completion_tokens": 3},
    }
    if failed:
        body = {"error": {"code": "worker_error", "message": text or f"{word} failed"}}
    response = {"status_code": 500 if failed else 200, "request_id": f"r{number}", "body": body}
    return lines.make_answered_result(response, {"attempts": 1})
