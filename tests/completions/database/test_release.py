"""A request keeps no database connection while it waits for its job or its client."""

import asyncio
import threading

import pytest
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.contrib.auth.models import User
from django.core.files.storage import FileSystemStorage
from django.http import HttpResponse
from django.test import AsyncClient
from django.utils import timezone

from completions.accounts import keys
from completions.database.release import release
from completions.endpoints.completions import CompletionsView
from completions.jobs import durable
from completions.jobs.new_job import IdempotencyKey
from tests.completions.console.batch_of_results import ended_batch
from tests.completions.endpoints.test_files import upload
from tests.completions.endpoints.test_uploads import CONTENT, add, begin, complete


@pytest.fixture
def released_in(monkeypatch):
    """The threads that gave their connections back."""
    threads = []
    monkeypatch.setattr(
        "completions.database.release.close_old_connections",
        lambda: threads.append(threading.current_thread()),
    )
    return threads


@pytest.fixture
async def root():
    """An administrator."""
    client = AsyncClient()
    await client.aforce_login(await sync_to_async(User.objects.create_superuser)("root"))
    return client


async def test_the_thread_that_used_it_gives_it_back(released_in):
    async with ThreadSensitiveContext():
        thread = await sync_to_async(threading.current_thread)()
        await release()
    assert released_in == [thread]


async def test_a_request_without_sql_starts_no_thread(released_in):
    async with ThreadSensitiveContext():
        await release()
    assert released_in == []


QUERIES = {
    "of a key": lambda: keys.look_up("none"),
    "of a job": lambda: durable.find("none", timezone.now()),
    "of a job that is withdrawn": lambda: durable.discard("none"),
    "of a repeated request": lambda: durable.find_by_key(
        IdempotencyKey("/v1/completions", "key", "digest"), 1, timezone.now()
    ),
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
async def test_queries_before_a_wait_give_it_back(released_in, query):
    async with ThreadSensitiveContext():
        assert await query() is None
        assert len(released_in) == 1


@pytest.mark.django_db(transaction=True)
async def test_a_task_that_outlives_its_request_gives_it_back(released_in):
    async with ThreadSensitiveContext():
        thread = await sync_to_async(threading.current_thread)()
        withdrawing = asyncio.create_task(durable.discard("none"))
        await asyncio.sleep(0)  # the thread has its query, and may end after it
    await withdrawing
    assert released_in == [thread]


@pytest.mark.django_db(transaction=True)
async def test_a_download_gives_it_back_before_its_first_byte(api, owner, released_in):
    file_id = (await sync_to_async(upload)(api)).json()["id"]
    async with ThreadSensitiveContext():
        path = f"/v1/files/{file_id}/content"
        answer = await AsyncClient().get(path, headers=owner.headers)
        assert answer.status_code == 200
        assert released_in
        answer.close()


@pytest.mark.django_db(transaction=True)
async def test_the_playground_gives_it_back_before_it_waits(root, owner, released_in, monkeypatch):
    released = []

    async def post(self, request):
        released.extend(released_in)
        return HttpResponse()

    monkeypatch.setattr(CompletionsView, "post", post)
    async with ThreadSensitiveContext():
        path, key = "/admin/playground/v1/completions", {"X-Quire-Key": str(owner.key.pk)}
        answer = await root.post(path, "{}", content_type="application/json", headers=key)
    assert answer.status_code == 200
    assert released


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("folder")
async def test_a_download_of_results_gives_it_back_before_each_piece(root, owner, released_in):
    batch = await sync_to_async(ended_batch)(owner.key, 10)
    batch.organization.store_prompts = True
    await batch.organization.asave()
    async with ThreadSensitiveContext():
        answer = await root.get(f"/admin/batches/{batch.id}/results/download/?format=jsonl")
        assert [piece async for piece in answer.streaming_content]
    assert released_in


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("module", ["files", "uploads"])
def test_an_upload_gives_it_back_while_its_content_is_written(api, monkeypatch, module):
    events, save = [], FileSystemStorage.save

    def note(*args, **options):
        events.append("written")
        return save(*args, **options)

    monkeypatch.setattr(FileSystemStorage, "save", note)
    monkeypatch.setattr(
        f"completions.batches.{module}.close_old_connections", lambda: events.append("given back")
    )
    answer = upload(api) if module == "files" else add(api, begin(api).json()["id"], CONTENT)
    assert answer.status_code == 200
    assert events == ["given back", "written"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("folder")
def test_long_files_are_read_without_it(api, owner, monkeypatch):
    """Many may be read at a time, to join parts or to find the failed lines of a batch."""
    events, open_file = [], FileSystemStorage.open

    def note(*args, **options):
        events.append("read")
        return open_file(*args, **options)

    batch, upload_id = ended_batch(owner.key, 10), begin(api).json()["id"]
    part = add(api, upload_id, CONTENT).json()
    monkeypatch.setattr(FileSystemStorage, "open", note)
    for module in ("resubmission", "uploads"):
        monkeypatch.setattr(
            f"completions.batches.{module}.close_old_connections",
            lambda: events.append("given back"),
        )
    assert complete(api, upload_id, part["id"]).status_code == 200
    assert events == ["given back", "read"]
    events.clear()
    assert api.post(f"/v1/batches/{batch.id}/resubmit").status_code == 200
    assert events == ["given back", "read", "read", "read"], "last the first lines, to forecast"
