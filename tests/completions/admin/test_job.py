"""Jobs in the admin: live ones from Redis, ended ones from SQL, and what one may do with them."""

from typing import Any

import pytest
import redis
from django.conf import settings
from django.test import Client
from django.utils import timezone

from completions.accounts import changes
from completions.accounts.audit import Actor
from completions.chat.reasoning import ThinkTags
from completions.contract.job_request import JobRequest, encode_job_request
from completions.contract.json_lines import compress_lines
from completions.contract.sampling import SamplingParams
from completions.contract.usage import Usage
from completions.jobs import operate
from completions.jobs.events import ChoiceEvent
from completions.jobs.execute import Ending, Execution, StepEvent
from completions.jobs.new_job import NewJob
from completions.jobs.store import JobStore
from completions.jobs.submit import submit_durable
from completions.maintenance import settlement
from completions.models import Organization, StoredPrompt
from completions.responses.chat import ChatResponseContext, OfferedTool
from tests.completions.admin.test_tables import record
from tests.completions.conftest import Tenant

pytestmark = pytest.mark.integration

REQUEST = JobRequest(((32, 33, 34),), SamplingParams(max_tokens=7), "start: /SECRET/")


def submit(client: redis.Redis, tenant: Tenant, job_id: str = "cmpl-live", **fields: Any) -> None:
    job = NewJob(
        job_id,
        "background",
        "tiny",
        tenant.organization.pk,
        tenant.key.pk,
        REQUEST,
        fields.pop("context", b""),
        60,
        60,
        request_id="trace-1",
        **fields,
    )
    submit_durable(JobStore(client, settings.REDIS_PREFIX), [job])


def run(client: redis.Redis, job_id: str = "cmpl-live") -> Execution:
    worker = Execution(JobStore(client, settings.REDIS_PREFIX), "worker-1")
    worker.beat("tiny", {})
    (claim,) = worker.claim([job_id])
    worker.publish(
        [StepEvent(job_id, claim.attempt, 1, [ChoiceEvent(0, [65], "A", None, None)])], []
    )
    return worker


def test_pages_of_a_queued_and_of_a_running_job(
    admin: Client, owner: Tenant, live: redis.Redis
) -> None:
    assert "No job is queued or running" in admin.get("/admin/live/").content.decode()
    submit(live, owner, "cmpl-one")
    submit(live, owner, "cmpl-two")
    run(live, "cmpl-one")
    page = admin.get("/admin/live/").content.decode()
    assert "cmpl-one" in page
    assert "worker-1" in page
    assert "owner&#x27;s key" in page
    assert "3 / 1" in page  # tokens
    queued = admin.get("/admin/live/?state=queued").content.decode()
    assert "cmpl-two" in queued
    assert "cmpl-one" not in queued


def test_a_running_jobs_page(admin: Client, owner: Tenant, live: redis.Redis) -> None:
    submit(live, owner)
    run(live)
    page = admin.get("/admin/jobs/cmpl-live/").content.decode()
    for shown in ("running", "trace-1", "owner", "worker-1", "max_tokens", "Cancel job", "Requeue"):
        assert shown in page
    assert "ABC" not in page  # the prompt
    assert "SECRET" not in page


def test_prompts_are_shown_where_they_are_stored(
    admin: Client, owner: Tenant, live: redis.Redis
) -> None:
    Organization.objects.update(store_prompts=True)
    submit(live, owner)
    assert "ABC" in admin.get("/admin/jobs/cmpl-live/").content.decode()
    record(owner, 1)
    page = admin.get("/admin/jobs/cmpl-1/").content.decode()
    assert "was not stored" in page
    StoredPrompt.objects.create(
        job_id="cmpl-1",
        organization=owner.organization,
        request=compress_lines([encode_job_request(REQUEST)]),
        created_at=timezone.now(),
    )
    assert "ABC" in admin.get("/admin/jobs/cmpl-1/").content.decode()
    Organization.objects.update(store_prompts=False)
    assert "ABC" not in admin.get("/admin/jobs/cmpl-1/").content.decode()


def test_texts_that_became_visible_later_say_so(
    admin: Client, owner: Tenant, live: redis.Redis
) -> None:
    submit(live, owner)
    owner.organization.store_prompts = True
    changes.change(owner.organization, ["store_prompts"], Actor.from_shell())
    submit(live, owner, "cmpl-later")
    page = admin.get("/admin/jobs/cmpl-live/").content.decode()
    assert "ABC" in page
    assert "its texts became visible when that was turned on, at 20" in page
    page = admin.get("/admin/jobs/cmpl-later/").content.decode()
    assert "ABC" in page
    assert "became visible" not in page


def test_the_answer_is_beside_the_prompt_where_they_are_stored(
    admin: Client, owner: Tenant, live: redis.Redis
) -> None:
    Organization.objects.update(store_prompts=True)
    context = ChatResponseContext(
        id="chatcmpl-live",
        model="tiny",
        created=1,
        n=2,
        prompt_lengths=[3],
        tool_format="hermes",
        tools=[OfferedTool("find", {"type": "object"})],
        think_tags=ThinkTags("<think>", "</think>"),
        is_reasoning_open=True,
    )
    submit(live, owner, "chatcmpl-live", context=context.to_json(), stored=True)
    store = JobStore(live, settings.REDIS_PREFIX)
    worker = Execution(store, "worker-1")
    worker.beat("tiny", {})
    (claim,) = worker.claim(["chatcmpl-live"])
    effect = {"forced_tokens": 4, "steps": 0, "overruled": 0, "removed": 0.0}
    call = '<tool_call>\n{"name": "find", "arguments": {"what": "&"}}\n</tool_call>'
    gains = [
        ChoiceEvent(0, [65], f"so many</think>{call}", "stop", None, {"constraint": effect}),
        ChoiceEvent(1, [66], "half a thou"),
    ]
    worker.publish([StepEvent("chatcmpl-live", claim.attempt, 1, gains)], [])
    operate.cancel(store, "chatcmpl-live")
    worker.publish([], [Ending("chatcmpl-live", claim.attempt, 3, "cancelled", None, Usage(3, 2))])
    assert settlement.settle(store) == 1
    page = admin.get("/admin/jobs/chatcmpl-live/").content.decode()
    for shown in (
        "Choice 0: tool_calls", "so many", "<code>find</code>",
        "&quot;what&quot;: &quot;&amp;&quot;",
        "Choice 1: abort", "half a thou", "forced_tokens", "ABC",
        "A user of the admin cancelled it.",
    ):  # fmt: skip
        assert shown in page, shown
    playground = admin.get("/admin/playground/?job=chatcmpl-live").content.decode()
    assert '{"tokens": "[32, 33, 34]"}' in playground
    assert '"max_tokens": "7"' in playground
    page = admin.get("/admin/jobs/chatcmpl-live/").content.decode()
    assert "Run again" in page
    assert r'"model": "\"tiny\"", "prompt": "[32, 33, 34]", "max_tokens": "7"' in page
    changes.revoke(owner.key, Actor.from_shell())
    page = admin.get("/admin/jobs/chatcmpl-live/").content.decode()
    assert "Run again" not in page
    assert "Copy as curl" in page
    Organization.objects.update(store_prompts=False)
    page = admin.get("/admin/jobs/chatcmpl-live/").content.decode()
    assert "so many" not in page
    assert "Open in playground" not in page
    playground = admin.get("/admin/playground/?job=chatcmpl-live").content.decode()
    assert "[32, 33, 34]" not in playground


def test_why_a_request_failed(admin: Client, owner: Tenant, live: redis.Redis) -> None:
    record(owner, 1, status="failed", error_code="queue_timeout", parameters={"max_tokens": 9})
    page = admin.get("/admin/jobs/cmpl-1/").content.decode()
    for shown in ("failed", "queue_timeout", "No worker was free", "req_1", "905 ms", "max_tokens"):
        assert shown in page
    assert "Cancel job" not in page


def test_cancelling_and_requeueing(admin: Client, owner: Tenant, live: redis.Redis) -> None:
    job = f"{settings.REDIS_PREFIX}job:cmpl-live"
    submit(live, owner)
    run(live)
    response = admin.post("/admin/jobs/cmpl-live/requeue/", follow=True)
    assert "was taken from its worker" in response.content.decode()
    assert live.hget(job, "state") == b"queued"
    response = admin.post("/admin/jobs/cmpl-live/cancel/", follow=True)
    assert "is cancelled" in response.content.decode()
    assert live.hget(job, "state") == b"cancelled"
    assert "admin:root cancelled it." in response.content.decode()
    for action in ("cancel", "requeue"):
        response = admin.post(f"/admin/jobs/cmpl-live/{action}/", follow=True)
        assert "has already ended" in response.content.decode()
        assert admin.get(f"/admin/jobs/cmpl-live/{action}/").status_code == 405


def test_an_unknown_job_is_not_found(admin: Client, live: redis.Redis) -> None:
    assert admin.get("/admin/jobs/cmpl-none/").status_code == 404


@pytest.mark.parametrize("term", ["trace-1", "cmpl-live"])
def test_the_search_box_finds_live_requests(
    admin: Client, owner: Tenant, live: redis.Redis, term: str
) -> None:
    submit(live, owner)
    page = admin.get("/admin/search/", {"s": term, "extended": "1"}).content.decode()
    assert "/admin/jobs/cmpl-live/" in page


@pytest.mark.parametrize("term", ["req_1", "cmpl-1"])
def test_the_search_box_finds_ended_requests(
    admin: Client, owner: Tenant, live: redis.Redis, term: str
) -> None:
    record(owner, 1, status="failed", error_code="worker_error")
    page = admin.get("/admin/search/", {"s": term, "extended": "1"}).content.decode()
    assert "/admin/jobs/cmpl-1/" in page
    assert "worker_error" in page


def test_the_search_box_finds_keys_by_the_beginning_of_a_secret(
    admin: Client, owner: Tenant, live: redis.Redis
) -> None:
    term = owner.secret[:14]
    page = admin.get("/admin/search/", {"s": term, "extended": "1"}).content.decode()
    assert f"/admin/completions/apikey/{owner.key.pk}/change/" in page
