"""What clients write (names of files, parameters, metadata, errors) is text on every page, never
HTML or a script in the operator's browser."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from completions.models import Batch, BatchStatus, File, FilePurpose
from tests.completions.admin.test_tables import record
from tests.completions.conftest import Tenant

EVIL = """"'><script>alert(1)</script><img src=x onerror=alert(1)>"""
SCRIPT = "<script>alert(1)"
ESCAPED = ("&lt;script&gt;alert(1)", "\\u003cscript\\u003ealert(1)", "\\u003Cscript\\u003Ealert(1)")


@pytest.fixture
def written(owner: Tenant) -> dict[str, str]:
    """The paths of pages that show hostile texts, by name."""
    owner.key.name = owner.organization.name = EVIL
    owner.key.save()
    owner.organization.save()
    request = record(
        owner,
        1,
        status="failed",
        error_code=EVIL[:64],
        model=EVIL,
        adapter=EVIL,
        worker=EVIL,
        request_id=EVIL[:64],
        parameters={EVIL: EVIL, "stop": [EVIL], "user": EVIL},
    )
    whose = {"organization": owner.organization, "api_key": owner.key}
    file = File.objects.create(
        **whose, filename=EVIL, purpose=FilePurpose.BATCH, bytes=1, content="nowhere"
    )
    batch = Batch.objects.create(
        **whose,
        endpoint="/v1/completions",
        model=EVIL,
        job_prefix="cmpl-",
        input_file_id=file.id,
        completion_window="24h",
        output_seconds=60,
        metadata={EVIL: EVIL},
        status=BatchStatus.FAILED,
        expires_at=timezone.now() + timedelta(hours=1),
        errors=[{"code": EVIL, "message": EVIL, "param": EVIL, "line": 1}],
    )
    base = "/admin/completions"
    return {
        "key": f"{base}/apikey/{owner.key.pk}/change/",
        "keys": f"{base}/apikey/",
        "organizations": f"{base}/organization/",
        "request": f"/admin/jobs/{request.job_id}/",
        "requests": f"{base}/usagerecord/",
        "file": f"{base}/file/{file.id}/change/",
        "files": f"{base}/file/",
        "batch": f"{base}/batch/{batch.id}/change/",
        "batches": f"{base}/batch/",
        "dashboard": "/admin/?period=1h",
    }


def test_no_page_runs_what_a_client_wrote(admin: Client, written: dict[str, str]) -> None:
    for name, path in written.items():
        response = admin.get(path)
        assert response.status_code == 200, (name, response.status_code)
        page = response.content.decode()
        assert SCRIPT not in page, name
        assert "<img src=x" not in page, name
        assert any(text in page for text in ESCAPED), f"{name} shows nothing of it"


@pytest.mark.parametrize("term", [EVIL, "%00", "\\", "a" * 3000])
def test_the_search_takes_any_text(admin: Client, written: dict[str, str], term: str) -> None:
    for path, name in (("/admin/search/", "s"), ("/admin/completions/usagerecord/", "q")):
        response = admin.get(path, {name: term})
        assert response.status_code == 200
        assert SCRIPT not in response.content.decode()


@pytest.mark.parametrize("page", ["x", "1.5", "0", "-1", "2", "9" * 30])
def test_a_page_that_the_search_does_not_have_is_not_found(admin: Client, page: str) -> None:
    assert admin.get("/admin/search/", {"s": "key", "page": page}).status_code == 404


def test_the_search_has_a_first_page(admin: Client) -> None:
    assert b"API keys" in admin.get("/admin/search/", {"s": "key", "page": "1"}).content


def test_a_stranger_to_the_admin_may_not_search(client: Client) -> None:
    assert client.get("/admin/search/", {"s": "key"}).status_code == 302
