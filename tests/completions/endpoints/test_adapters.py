"""Adapters over HTTP: who may change them, what refuses them, and what jobs are admitted with."""

import asyncio
import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.utils import timezone
from pytest_django.fixtures import Settings

from completions.accounts import adapters, changes
from completions.contract.adapters import RETIRED_FILE, WEIGHTS_FILE, make_reference
from completions.models import Adapter, ApiKey, AuditEntry, Batch, BatchStatus, Job, Role
from tests.completions.catalog.test_adapter_store import make_adapter
from tests.completions.conftest import Tenant
from tests.completions.live_api import PREFIX, Caller, Live

pytestmark = [pytest.mark.integration, pytest.mark.django_db(transaction=True)]

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"


@pytest.fixture
async def admin(live: Live, owner: Tenant, settings: Settings, tmp_path: Path) -> Live:
    """The owner's key is an admin's, and two adapters lie in the owner's folder."""
    settings.ADAPTER_SOURCES, settings.ADAPTER_STORE = tmp_path / "lora", tmp_path / "store"
    for number, name in enumerate(("one", "two")):
        make_adapter(tmp_path / "lora" / "owner" / name, body=bytes([number] * 128))
    await sync_to_async(make_admin)(owner)
    return live


def make_admin(tenant: Tenant) -> None:
    tenant.key.role = Role.ADMIN
    changes.change(tenant.key, ["role"], adapters.audit.SERVICE)


async def load(caller: Any, path: str = "one", name: str = "mine", **fields: Any) -> Any:
    body = {"lora_name": name, "lora_path": path, "base_model_name": "tiny", **fields}
    return await caller.post(LOAD, json.dumps(body), content_type="application/json")


async def unload(caller: Any, name: str = "mine", **fields: Any) -> Any:
    body = {"lora_name": name, **fields}
    return await caller.post(UNLOAD, json.dumps(body), content_type="application/json")


def refusal(response: Any) -> tuple[int, str, str]:
    error = json.loads(response.content)["error"]
    return response.status_code, error["code"], error["param"]


def read_adapters(live: Live, job_id: str) -> list[str | None]:
    found: list[str | None] = json.loads(live.redis.hget(f"{PREFIX}job:{job_id}", "request"))[
        "adapters"
    ]
    return found


async def ask(live: Live, **fields: Any) -> tuple[str, list[str | None]]:
    """Start a background job. Returns its id and its adapters."""
    response = await live.post(background=True, **fields)
    assert response.status_code == 202, response.content
    job_id = json.loads(response.content)["id"]
    return job_id, read_adapters(live, job_id)


async def test_jobs_keep_the_version_that_they_were_admitted_with(
    admin: Live, settings: Settings
) -> None:
    response = await load(admin.http)
    assert (response.status_code, response.content.decode()) == (
        200,
        "Success: LoRA adapter 'mine' added successfully.",
    )
    assert response.headers["Content-Type"].startswith("text/plain")
    first = await Adapter.objects.aget()
    [probe] = admin.sent
    assert admin.redis.hget(f"{PREFIX}job:{probe}", "adapter") == b"mine"
    listed = json.loads((await admin.http.get("/v1/models")).content)["data"]
    assert [each["id"] for each in listed][-2:] == ["tiny:polite", "tiny:mine"]
    assert listed[0]["capabilities"]["adapters"] == ["polite", "mine"]
    assert (await admin.http.get("/v1/models/tiny:mine")).status_code == 200

    admin.at_once = False
    for fields in ({"model": "tiny:mine"}, {"model": "mine"}, {"lora_path": "mine"}):
        assert (await ask(admin, **fields))[1] == [first.reference]
    kept, _ = await ask(admin, adapter="mine")
    assert refusal(await load(admin.http, "two")) == (
        400,
        "adapter_already_loaded",
        "load_inplace",
    )
    admin.at_once = True
    assert (await load(admin.http, "two", load_inplace=True)).status_code == 200
    admin.at_once = False
    second = await Adapter.objects.active().aget()
    assert (second.version, second.digest != first.digest) == (2, True)
    assert (await ask(admin, model="mine"))[1] == [second.reference]
    assert read_adapters(admin, kept) == [first.reference]
    store = settings.ADAPTER_STORE
    assert (store / first.digest / RETIRED_FILE).exists()
    assert not (store / second.digest / RETIRED_FILE).exists()

    response = await unload(admin.http)
    assert (response.status_code, response.content.decode()) == (
        200,
        "Success: LoRA adapter 'mine' removed successfully.",
    )
    assert refusal(await admin.post(model="tiny:mine")) == (404, "adapter_not_found", "model")
    assert refusal(await admin.post(model="mine")) == (404, "model_not_found", "model")
    assert refusal(await unload(admin.http)) == (404, "adapter_not_found", "lora_name")
    assert read_adapters(admin, kept) == [first.reference]
    assert await asyncio.to_thread(admin.worker.run, kept)
    trail = [
        each.changes["adapter tiny:mine"]
        async for each in AuditEntry.objects.filter(object_type="organization").order_by("pk")
        if "adapter tiny:mine" in each.changes
    ]
    assert trail == [
        [None, first.digest],
        [first.digest, second.digest],
        [second.digest, None],
    ]


async def test_a_version_goes_once_no_job_can_need_it(admin: Live, settings: Settings) -> None:
    await load(admin.http)
    admin.at_once = False
    job_id, _ = await ask(admin, model="mine")
    admin.at_once = True
    await load(admin.http, "two", load_inplace=True)
    await unload(admin.http)
    assert await sync_to_async(adapters.prune)(timezone.now()) == 0, "a call may still run"
    later = timezone.now() + timedelta(hours=1)
    first, second = [each.digest async for each in Adapter.objects.order_by("version")]
    for digest in (first, second):
        os.utime(settings.ADAPTER_STORE / digest, (0, 0))
    assert await sync_to_async(adapters.prune)(later) == 0, "the background job has not ended"
    assert (settings.ADAPTER_STORE / first).exists()
    await Job.objects.filter(id=job_id).aupdate(status="completed")
    batch = Batch(endpoint="/v1/completions", completion_window="24h", output_seconds=60)
    batch.organization_id = (await Adapter.objects.afirst()).organization_id
    batch.api_key_id = (await ApiKey.objects.aget()).pk
    batch.status, batch.job_prefix, batch.expires_at = BatchStatus.IN_PROGRESS, "cmpl-", later
    await batch.asave()
    assert await sync_to_async(adapters.prune)(later) == 0, "the batch has not ended"
    await Batch.objects.aupdate(status=BatchStatus.COMPLETED)
    assert await sync_to_async(adapters.prune)(later) == 2
    assert not (settings.ADAPTER_STORE / first).exists()
    assert not (settings.ADAPTER_STORE / second).exists()
    assert not await Adapter.objects.aexists()


async def test_the_same_files_under_two_names_outlive_one_of_them(
    admin: Live, settings: Settings
) -> None:
    await load(admin.http)
    await load(admin.http, name="same")
    await unload(admin.http)
    digest = (await Adapter.objects.active().aget()).digest
    assert not (settings.ADAPTER_STORE / digest / RETIRED_FILE).exists()
    assert (await load(admin.http, name="mine")).status_code == 200
    assert (await Adapter.objects.active().aget(name="mine")).version == 2


async def test_what_no_worker_can_load_is_not_registered(admin: Live) -> None:
    admin.at_once = False
    loading = asyncio.create_task(load(admin.http))
    await admin.dispatched.wait()
    [probe] = admin.sent
    await asyncio.to_thread(admin.worker.run, probe, "failed", "unsupported_adapter", ())
    response = await loading
    assert refusal(response) == (400, "unsupported_adapter", None)
    assert "because" in json.loads(response.content)["error"]["message"]
    assert not await Adapter.objects.active().aexists()
    assert refusal(await admin.post(model="tiny:mine"))[1] == "adapter_not_found"


async def test_without_a_worker_it_is_not_registered(admin: Live) -> None:
    response = await load(admin.http, base_model_name="texts")
    assert refusal(response) == (503, "model_loading", None)
    assert not await Adapter.objects.active().aexists()


async def test_only_an_admins_key_may_change_adapters(admin: Live, stranger: Tenant) -> None:
    await load(admin.http)
    for answer in (await load(Caller(stranger), "x"), await unload(Caller(stranger))):
        assert refusal(answer) == (403, "permission_denied", None)
    assert await Adapter.objects.active().aexists()


async def test_an_organization_sees_its_own_adapters_only(admin: Live, stranger: Tenant) -> None:
    await load(admin.http)
    await sync_to_async(make_admin)(stranger)
    them = Caller(stranger)
    listed = json.loads((await them.get("/v1/models")).content)["data"]
    assert "tiny:mine" not in [each["id"] for each in listed]
    assert (await them.get("/v1/models/tiny:mine")).status_code == 404
    for body in ({"model": "tiny:mine"}, {"model": "mine"}, {"model": "tiny", "adapter": "mine"}):
        body = {"prompt": [65], "max_tokens": 1, **body}
        answer = await them.post(
            "/v1/completions", json.dumps(body), content_type="application/json"
        )
        assert (answer.status_code, "polite" in answer.content.decode()) in (
            (404, True),
            (404, False),
        )
        assert "mine," not in answer.content.decode()
    assert refusal(await unload(them)) == (404, "adapter_not_found", "lora_name")
    for path in ("one", "../owner/one", "/one"):
        assert refusal(await load(them, path)) == (404, "adapter_not_found", "lora_path")
    assert await Adapter.objects.active().acount() == 1


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"name": "tiny"}, "invalid_value", "lora_name"),
        ({"name": "polite"}, "invalid_value", "lora_name"),
        ({"name": "a:b"}, "invalid_value", "lora_name"),
        ({"name": ""}, "invalid_value", "lora_name"),
        ({"name": None}, "missing_required_parameter", "lora_name"),
        ({"path": None}, "missing_required_parameter", "lora_path"),
        ({"path": 1}, "invalid_type", "lora_path"),
        ({"path": "owner/one"}, "adapter_not_found", "lora_path"),
        ({"load_inplace": "yes"}, "invalid_type", "load_inplace"),
        ({"base_model_name": "none"}, "model_not_found", "base_model_name"),
        ({"base_model_name": "tiny:polite"}, "invalid_value", "base_model_name"),
        ({"base_model_name": None}, "missing_required_parameter", "base_model_name"),
        ({"is_3d_lora_weight": True}, "unsupported_value", "is_3d_lora_weight"),
        ({"other": 1}, "unknown_parameter", "other"),
    ],
)
async def test_refused_bodies(admin: Live, fields: dict[str, Any], code: str, param: str) -> None:
    assert refusal(await load(admin.http, **fields))[1:] == (code, param)
    assert admin.sent == []


async def test_the_number_of_adapters_is_limited(admin: Live, settings: Settings) -> None:
    settings.MAX_ADAPTERS = 1
    await load(admin.http)
    assert refusal(await load(admin.http, name="more"))[1] == "storage_limit_exceeded"
    assert (await load(admin.http, "two", load_inplace=True)).status_code == 200


async def test_the_bytes_of_an_organizations_adapters_are_limited(
    admin: Live, settings: Settings, tmp_path: Path
) -> None:
    folder = tmp_path / "lora" / "owner"
    size = (folder / "one" / WEIGHTS_FILE).stat().st_size
    settings.MAX_STORED_ADAPTER_BYTES = 2 * size
    make_adapter(folder / "three", body=bytes([3] * 128))
    await load(admin.http)
    assert (await load(admin.http, "two", load_inplace=True)).status_code == 200
    response = await load(admin.http, "three", load_inplace=True)
    assert refusal(response) == (400, "storage_limit_exceeded", "lora_path"), "one is retired only"
    message = json.loads(response.content)["error"]["message"]
    assert f"it has {size} bytes, and your organization's other adapters {2 * size}" in message
    assert len(list(settings.ADAPTER_STORE.iterdir())) == 2, "what is refused is not kept"
    assert (await load(admin.http, name="same")).status_code == 200, "these files are there already"
    later = timezone.now() + timedelta(hours=1)
    assert await sync_to_async(adapters.prune)(later) == 1
    response = await load(admin.http, "three", load_inplace=True)
    assert refusal(response)[1] == "storage_limit_exceeded", "one has another name"
    await unload(admin.http, "same")
    assert await sync_to_async(adapters.prune)(later) == 1
    assert (await load(admin.http, "three", load_inplace=True)).status_code == 200
    assert (await Adapter.objects.active().aget()).version == 3


async def test_what_is_tried_out_in_vain_counts_until_it_is_deleted(
    admin: Live, settings: Settings, tmp_path: Path
) -> None:
    size = (tmp_path / "lora" / "owner" / "one" / WEIGHTS_FILE).stat().st_size
    settings.MAX_STORED_ADAPTER_BYTES = size
    admin.at_once = False
    loading = asyncio.create_task(load(admin.http))
    await admin.dispatched.wait()
    await asyncio.to_thread(admin.worker.run, admin.sent[0], "failed", "adapters_overloaded", ())
    response = await loading
    assert refusal(response) == (503, "server_overloaded", None)
    assert "LoRA adapters of running jobs" in json.loads(response.content)["error"]["message"]
    assert refusal(await admin.post(model="tiny:mine"))[1] == "adapter_not_found"
    admin.at_once = True
    assert refusal(await load(admin.http, "two"))[1] == "storage_limit_exceeded"
    assert await sync_to_async(adapters.prune)(timezone.now() + timedelta(hours=1)) == 1
    assert (await load(admin.http, "two")).status_code == 200


async def test_a_reference_is_no_name(admin: Live) -> None:
    await load(admin.http)
    reference = (await Adapter.objects.aget()).reference
    unknown = make_reference("mine", "0" * 64)
    for name in (reference, unknown):
        assert refusal(await admin.post(adapter=name))[1] == "adapter_not_found"
