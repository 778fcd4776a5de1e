"""Refused requests in the admin: on the dashboard, and on the pages of keys and organizations."""

from django.test import Client

from completions.usage import refusals
from completions.usage.refusals import RefusalCounter
from tests.completions.conftest import Tenant


def refuse(tenant: Tenant, code: str, message: str) -> None:
    counter = RefusalCounter()
    counter.count(tenant.organization.pk, tenant.key.pk, code, message, "req_7")
    refusals.store(counter.take())


def test_pages_say_why_requests_are_refused(admin: Client, owner: Tenant, stranger: Tenant) -> None:
    refuse(owner, "model_not_found", "There is no <model> 'x'.")
    refuse(stranger, "queue_full", "The queue is full.")
    pages = {
        "/admin/": {"model_not_found", "queue_full"},
        "/admin/completions/refusal/": {"model_not_found", "queue_full"},
        f"/admin/completions/apikey/{owner.key.pk}/change/": {"model_not_found"},
        f"/admin/completions/organization/{owner.organization.pk}/change/": {"model_not_found"},
    }
    for path, codes in pages.items():
        page = admin.get(path).content.decode()
        assert {code for code in ("model_not_found", "queue_full") if code in page} == codes, path
        assert "There is no &lt;model&gt; &#x27;x&#x27;." in page
    found = admin.get("/admin/completions/refusal/?code=queue_full").content.decode()
    assert "The queue is full." in found
    assert "There is no" not in found


def test_a_keys_page_says_where_its_old_secret_is_used(admin: Client, owner: Tenant) -> None:
    counter = RefusalCounter()
    masked = f"sk-{owner.key.public_id}-..."
    counter.count_wrong_key(masked, "192.0.2.7", "api_key_expired")
    counter.count_wrong_key("***", "192.0.2.8", "invalid_api_key")
    refusals.store(counter.take())
    page = admin.get(f"/admin/completions/apikey/{owner.key.pk}/change/").content.decode()
    assert "192.0.2.7" in page
    assert "api_key_expired" in page
    assert "192.0.2.8" not in page
    assert "192.0.2.8" in admin.get("/admin/completions/wrongkey/").content.decode()
    without = admin.get("/admin/completions/organization/add/")
    assert without.status_code == 200


def test_the_page_of_no_organization_is_not_an_error(admin: Client) -> None:
    response = admin.get("/admin/completions/organization/99999/change/")
    assert response.status_code == 302
