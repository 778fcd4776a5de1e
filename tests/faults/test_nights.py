"""A batch with a pilot, a plan, receipts and a webhook keeps all of them through kills."""

import json
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from benchmarks.service.scripted_worker import token
from tests.acceptance.kills.test_kills import ENDED
from tests.acceptance.service import MODEL, ScriptedInstallation
from tests.completions.webhooks.receiver import Receiver, receiver
from tests.faults.invariants import require_nothing_open, until
from tests.faults.test_storm import when_it_answers

pytestmark = pytest.mark.faults

LINES, PILOT, REFUSED, TOKENS = 200, 30, 4, 20
PREFIXES = [[p + 1] * 64 for p in range(8)]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ScriptedInstallation]:
    private = {"QUIRE_WEBHOOKS_TO_PRIVATE_NETWORKS": "true"}
    with ScriptedInstallation(tmp_path, 0.02, **private) as service:
        yield service


def requests() -> list[dict[str, object]]:
    """Lines with shared prefixes, shuffled; every fiftieth is refused."""
    numbers = list(range(LINES))
    random.Random(1).shuffle(numbers)  # noqa: S311
    return [
        {
            "custom_id": f"r{n}", "method": "POST", "url": "/v1/completions",
            "body": {
                "model": MODEL, "prompt": [*PREFIXES[n % 8], n + 1], "seed": n,
                "max_tokens": 0 if n % 50 == 49 else TOKENS, "return_token_ids": True,
            },
        }
        for n in numbers
    ]  # fmt: skip


def begun(client: openai.OpenAI, lines: list[dict[str, object]]) -> openai.types.Batch:
    content = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h",
        extra_body={"dry_run": True, "pilot": PILOT, "receipts": True},
    )  # fmt: skip


def test_every_promise_of_a_batch_is_kept(service: ScriptedInstallation) -> None:
    lines = requests()
    with receiver() as there, service.client() as client:
        there.statuses += [500, 503]  # it is down at first, too
        secret = registered(service, there)
        batch = begun(client, lines)

        def seen() -> openai.types.Batch | None:
            return when_it_answers(lambda: client.batches.retrieve(batch.id))

        def done(count: int) -> openai.types.Batch:
            return until(
                lambda: (b := seen()) and b.request_counts.completed >= count and b, "it goes on"
            )

        done(PILOT // 3)
        service.kill_worker()
        service.kill("cpu-worker")
        done(PILOT)
        for victim in ("web", "cpu-worker"):
            service.kill(victim)
        held = until(seen, "it is held")
        assert (held.held, held.status) == (True, "in_progress")
        assert held.forecast["lines_run"] == PILOT
        assert held.forecast["completion_tokens"]["expected"] == (LINES - REFUSED) * TOKENS
        assert held.plan["prompt_tokens"] == (LINES - REFUSED) * 65
        assert held.request_counts.completed == PILOT  # nothing ran but the pilot

        until(lambda: when_it_answers(lambda: started(client, batch)), "it starts")
        done(LINES // 3)
        service.kill_worker()
        service.kill("web")
        done(LINES // 2)
        emptied(service)
        service.kill("cpu-worker")
        until(lambda: (b := seen()) and b.status in ENDED, "it ends")
        service.kill("cpu-worker")

        ended = until(seen, "it answers")
        require_all(client, ended, lines)
        require_one_event(there, secret, ended)
        require_nothing_open(service)


def registered(service: ScriptedInstallation, there: Receiver) -> str:
    """Register the receiver for the organization of the key. Returns the endpoint's secret."""
    script = (
        "from completions.models import Organization as O, WebhookEndpoint as W;"
        f"print(W.objects.create(organization=O.objects.get(), url={there.url!r}).secret)"
    )
    return service.manage("shell", "-v0", "-c", script).strip()


def started(client: openai.OpenAI, batch: openai.types.Batch) -> bool:
    client.post(f"/batches/{batch.id}/start", cast_to=object)
    return True


def emptied(service: ScriptedInstallation) -> None:
    """Kill Redis, and delete what it stored."""
    service.kill("valkey")
    for entry in (service.home / "valkey").iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)


def require_all(
    client: openai.OpenAI, batch: openai.types.Batch, lines: list[dict[str, object]]
) -> None:
    """Each line once, in the order of the file, with its tokens and a receipt of the same ones."""
    counts = batch.request_counts
    assert (batch.status, counts.completed, counts.failed) == (
        "completed", LINES - REFUSED, REFUSED,
    )  # fmt: skip
    assert batch.usage.output_tokens == (LINES - REFUSED) * TOKENS
    assert batch.summary["finish_reasons"] == {"length": LINES - REFUSED}
    answers, errors = (
        [json.loads(text) for text in client.files.content(file).text.splitlines()]
        for file in (batch.output_file_id, batch.error_file_id)
    )
    sent = [line["custom_id"] for line in lines]
    failed = {line["custom_id"] for line in errors}
    assert failed == {f"r{n}" for n in range(49, LINES, 50)}
    assert [line["custom_id"] for line in answers] == [name for name in sent if name not in failed]
    for answer in answers:
        seed = int(answer["custom_id"].removeprefix("r"))
        expected = [token(seed, 0, k) for k in range(TOKENS)]
        assert answer["response"]["body"]["choices"][0]["token_ids"] == expected
        receipt = answer["receipt"]
        assert (receipt["output_ids"], receipt["seed"]) == ([expected], seed)


def require_one_event(there: Receiver, secret: str, batch: openai.types.Batch) -> None:
    """One event came, maybe several times under its id: first to a server that was down."""
    until(lambda: len(there.received) >= 1, "the first attempt")
    attempts = Counter()
    client = openai.OpenAI(api_key="unused", webhook_secret=secret)
    deadline = time.monotonic() + 30
    while there.statuses and time.monotonic() < deadline:
        time.sleep(0.2)
    for _path, headers, body in list(there.received):
        event = client.webhooks.unwrap(body, headers)
        assert (event.type, event.data.id) == ("batch.completed", batch.id)
        attempts[event.id] += 1
    assert len(attempts) == 1, attempts
