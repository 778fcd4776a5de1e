"""What the Responses API costs: an event as a dict and as the openai package's type, and a chain.

    python -m benchmarks.studies.responses

The chain is of stored responses in a new SQLite database, with answers of `--tokens` events each.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import orjson

from benchmarks import command_line

ROUNDS = 20_000
EVENT = {
    "type": "response.output_text.delta",
    "item_id": "msg_6f9619ff8b86d011b42d00c04fc964ff_0",
    "output_index": 0,
    "content_index": 0,
    "delta": " word",
    "logprobs": [],
    "sequence_number": 7,
}


def time_each(function: Callable[[], object]) -> float:
    """Return the microseconds of a call: the least of five means."""
    means = []
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(ROUNDS):
            function()
        means.append((time.perf_counter() - began) / ROUNDS)
    return min(means) * 1e6


def measure_events() -> None:
    from openai.types.responses import ResponseTextDeltaEvent

    from completions.responses import sse

    def write_dict() -> bytes:
        return sse.make_frame({**EVENT}, event="response.output_text.delta")

    def write_typed() -> bytes:
        event = ResponseTextDeltaEvent.model_construct(**EVENT)  # type: ignore[arg-type]
        return b"event: %b\ndata: %b\n\n" % (event.type.encode(), event.model_dump_json().encode())

    print(f"an event as a dict: {time_each(write_dict):.1f} us")
    print(f"as the package's type, not validated: {time_each(write_typed):.1f} us")
    program = (
        "import resource, time; a = time.perf_counter(); import openai.types.responses; "
        "print(time.perf_counter() - a, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10)"
    )
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    seconds, size = done.stdout.split()
    print(f"importing these types: {float(seconds):.1f} s; the process then has {size} MB")


def make_chain(length: int, tokens: int) -> tuple[Any, str]:
    """Store a chain of responses. Returns their key and the id of the last one."""
    from django.utils import timezone

    from completions.accounts import changes, keys
    from completions.contract.json_lines import compress_lines
    from completions.contract.usage import Usage
    from completions.jobs.events import ChoiceEvent, encode_choices, encode_end
    from completions.models import Job, Organization, StoredResponse
    from completions.models.timed_ids import new_id
    from completions.responses.response_object import ItemsResponseContext

    organization = Organization.objects.create(name="study")
    key, _ = changes.create(organization, "study")
    ends = [None] * (tokens - 1) + ["stop"]
    events = [encode_choices(i + 1, [ChoiceEvent(0, [i], " word", ends[i])]) for i in range(tokens)]
    events.append(encode_end(tokens + 1, "completed", None, Usage(9, tokens)))
    last = ""
    message = {"type": "message", "role": "user", "content": []}
    for _ in range(length):
        job_id = new_id("resp_")
        context = ItemsResponseContext(job_id, "m", 0, 1, [9], shown={"store": True})
        now = timezone.now()
        job = Job.objects.create(
            id=job_id, organization=organization, api_key=key, model="m", status="completed",
            request={}, context=orjson.loads(context.to_json()), deadline_at=now,
            finished_at=now, ttl=1, events=compress_lines(events),
        )  # fmt: skip
        StoredResponse.objects.create(
            job=job, previous_id=last, input=StoredResponse.pack([{"id": "msg_0", **message}])
        )
        last = job_id
    principal = keys.Principal(key.pk, organization.pk, key.public_id, (), None)
    return principal, last


def measure_chain(length: int, tokens: int) -> None:
    from django.core.management import call_command

    from completions.delivery.history import read_earlier
    from completions.http.process import WebProcess

    call_command("migrate", verbosity=0)
    principal, last = make_chain(length, tokens)

    async def read() -> float:
        process: WebProcess = WebProcess()
        began = time.perf_counter()
        earlier = await read_earlier(process, principal, {"previous_response_id": last})
        seconds = time.perf_counter() - began
        assert len(earlier.items) == 2 * length
        process.validator.close()
        return seconds

    seconds = min(asyncio.run(read()) for _ in range(5))
    print(f"a chain of {length} responses of {tokens} tokens: {seconds * 1000:.0f} ms")


def main() -> None:
    options = command_line.parser(__doc__, length=50, tokens=100).parse_args()
    with tempfile.TemporaryDirectory() as home:
        os.environ["QUIRE_HOME"] = home
        os.environ["DATABASE_URL"] = f"sqlite:///{home}/quire.sqlite3"
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
        import django

        django.setup()
        measure_events()
        measure_chain(options.length, options.tokens)


if __name__ == "__main__":
    main()
