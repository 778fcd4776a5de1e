"""Only those who may change an address see its secret; an operator sends a delivery again."""

import pytest
from django.contrib.admin.utils import quote
from django.test import Client

from completions.accounts import operator_groups
from completions.models import WebhookDelivery, WebhookEndpoint

pytestmark = pytest.mark.django_db


@pytest.fixture
def delivery(owner) -> WebhookDelivery:
    endpoint = WebhookEndpoint.objects.create(
        organization=owner.organization, url="https://a.example/hook"
    )
    return WebhookDelivery.objects.create(
        endpoint=endpoint, type="batch.completed", subject="batch_1", due_at=None, attempts=9
    )


def test_the_secret_is_shown_to_those_who_may_change_it(admin: Client, in_role, delivery) -> None:
    endpoint = delivery.endpoint
    path = f"/admin/completions/webhookendpoint/{endpoint.pk}/change/"
    assert endpoint.secret in admin.get(path).content.decode()
    seen = in_role(operator_groups.VIEWER).get(path).content.decode()
    assert endpoint.url in seen
    assert endpoint.secret not in seen


def test_the_secret_cannot_be_guessed_by_a_filter(admin: Client, in_role, delivery) -> None:
    guess = f"secret__startswith={delivery.endpoint.secret[:7]}"
    for client in (admin, in_role(operator_groups.VIEWER), in_role(operator_groups.OPERATOR)):
        for path in (f"webhookendpoint/?{guess}", f"webhookdelivery/?endpoint__{guess}"):
            assert client.get(f"/admin/completions/{path}").status_code == 400
        assert client.get("/admin/completions/webhookendpoint/?enabled=1").status_code == 200


def test_an_operator_sends_a_delivery_again_and_a_viewer_does_not(in_role, delivery) -> None:
    path = "/admin/completions/webhookdelivery/"
    body = {"action": "replay", "_selected_action": delivery.pk}
    in_role(operator_groups.VIEWER).post(path, body)
    delivery.refresh_from_db()
    assert delivery.due_at is None
    assert in_role(operator_groups.OPERATOR).post(path, body).status_code == 302
    delivery.refresh_from_db()
    assert (delivery.due_at is not None, delivery.attempts) == (True, 0)


def test_a_registered_address_gets_a_secret_of_its_own(admin: Client, owner) -> None:
    body = {
        "organization": owner.organization.pk, "url": "https://b.example/", "enabled": "on",
        "events": ["batch.completed", "budget.warning"],
    }  # fmt: skip
    path = "/admin/completions/webhookendpoint/add/"
    assert admin.post(path, body).status_code == 302
    endpoint = WebhookEndpoint.objects.get()
    assert endpoint.secret.startswith("whsec_")
    assert endpoint.events == body["events"]
    assert "webhook.test" not in admin.get(path).content.decode()
    refused = admin.post(path, {**body, "events": []})
    assert "This field is required" in refused.content.decode()


def test_those_who_may_change_an_endpoint_rotate_its_secret_and_try_it(
    admin, in_role, delivery
) -> None:
    path = "/admin/completions/webhookendpoint/"
    endpoint, secret = delivery.endpoint, delivery.endpoint.secret
    viewer = in_role(operator_groups.VIEWER)
    for action in ("rotate_secret", "send_test"):
        body = {"action": action, "_selected_action": endpoint.pk}
        viewer.post(path, body)
        endpoint.refresh_from_db()
        assert (endpoint.secret, WebhookDelivery.objects.count()) == (secret, 1)
    for action in ("rotate_secret", "send_test"):
        body = {"action": action, "_selected_action": endpoint.pk}
        assert admin.post(path, body).status_code == 302
    endpoint.refresh_from_db()
    assert endpoint.secret != secret
    made = WebhookDelivery.objects.get(type="webhook.test")
    WebhookEndpoint.objects.update(enabled=False)
    said = admin.post(path, {"action": "send_test", "_selected_action": endpoint.pk}, follow=True)
    assert "not enabled get nothing: 1" in said.content.decode()
    made.history = [{"at": "2026-11-27T08:00:00", "seconds": 0.2, "status_code": 503, "error": ""}]
    made.save()
    # As lists link it: in an address of the admin, "_22" is a quotation mark.
    page = admin.get(f"/admin/completions/webhookdelivery/{quote(made.pk)}/change/")
    assert (page.status_code, page.headers.get("Location")) == (200, None)
    assert "2026-11-27T08:00:00: 503, after 200 ms" in page.content.decode()
