"""An ended batch reaches the receiver once, signed as the official client verifies it."""

from datetime import timedelta

import openai
import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone

from completions.maintenance import pruning
from completions.maintenance.pruning import DELIVERIES_KEPT
from completions.models import BatchStatus, BudgetWarning, WebhookDelivery, WebhookEndpoint
from completions.models.webhooks import OVERLAP
from completions.webhooks import deliveries, events, sending
from tests.completions.endpoints.test_strangers import made_batch, made_file
from tests.completions.webhooks.receiver import receiver

pytestmark = pytest.mark.django_db


@pytest.fixture
def there(settings):
    settings.WEBHOOKS_TO_PRIVATE_NETWORKS = True
    with receiver() as there:
        yield there


@pytest.fixture
def endpoint(owner, there):
    return WebhookEndpoint.objects.create(organization=owner.organization, url=there.url)


def ended(owner, status=BatchStatus.COMPLETED):
    batch = made_batch(owner, made_file(owner))
    type(batch).objects.filter(pk=batch.pk).update(status=status, ended_at=timezone.now())
    return batch


def test_the_official_client_accepts_what_is_delivered(owner, endpoint, there) -> None:
    batch = ended(owner)
    assert events.collect(timezone.now()) == 1
    assert deliveries.send_due(timezone.now()) == 1
    ((path, headers, body),) = there.received
    assert path == "/hook?from=quire"
    client = openai.OpenAI(api_key="unused", webhook_secret=endpoint.secret)
    event = client.webhooks.unwrap(body, headers)
    assert (event.type, event.data.id) == ("batch.completed", batch.id)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        client.webhooks.unwrap(body.replace(b"completed", b"cancelled"), headers)
    delivery = WebhookDelivery.objects.get()
    assert (delivery.id, delivery.status_code, delivery.due_at) == (event.id, 204, None)


def test_each_event_is_delivered_once(owner, stranger, endpoint, there) -> None:
    for status in (BatchStatus.FAILED, BatchStatus.EXPIRED, BatchStatus.CANCELLED):
        ended(owner, status)
    ended(stranger)
    made_batch(owner, made_file(owner))  # it runs
    for _ in range(2):
        events.collect(timezone.now())
        deliveries.send_due(timezone.now())
    assert len(there.received) == 3
    assert {row.type for row in WebhookDelivery.objects.all()} == {
        "batch.failed", "batch.expired", "batch.cancelled",
    }  # fmt: skip


def test_an_endpoint_gets_nothing_older_than_itself(owner, there) -> None:
    ended(owner)
    WebhookEndpoint.objects.create(organization=owner.organization, url=there.url)
    assert events.collect(timezone.now()) == 0


def test_an_endpoint_gets_only_the_events_that_it_chose(owner, endpoint) -> None:
    WebhookEndpoint.objects.update(events=["batch.failed"])
    BudgetWarning.objects.create(
        organization=owner.organization, scope="o1", budget="daily_token_budget",
        period=timezone.now().date(), percent=80,
    )  # fmt: skip
    ended(owner)
    failed = ended(owner, BatchStatus.FAILED)
    assert events.collect(timezone.now()) == 1
    assert WebhookDelivery.objects.get().subject == failed.id


def test_a_test_event_arrives_whatever_the_endpoint_chose(owner, endpoint, there) -> None:
    WebhookEndpoint.objects.update(events=["batch.failed"])
    events.send_test(endpoint)
    events.send_test(endpoint)
    assert deliveries.send_due(timezone.now()) == 2
    client = openai.OpenAI(api_key="unused", webhook_secret=endpoint.secret)
    assert {client.webhooks.unwrap(body, headers).type for _, headers, body in there.received} == {
        "webhook.test"
    }


def test_a_rotated_secret_signs_beside_the_new_one_for_a_day(owner, endpoint, there) -> None:
    earlier, now = endpoint.secret, timezone.now()
    endpoint.rotate_secret(now)
    events.send_test(endpoint)
    deliveries.send_due(timezone.now())
    ((_, headers, body),) = there.received
    for secret in (earlier, endpoint.secret):
        client = openai.OpenAI(api_key="unused", webhook_secret=secret)
        assert client.webhooks.unwrap(body, headers).type == "webhook.test"
    assert endpoint.list_secrets(now + OVERLAP) == [endpoint.secret] != [earlier]


def test_a_delivery_keeps_its_latest_attempts(owner, endpoint, there) -> None:
    there.statuses = [500, 503]
    events.send_test(endpoint)
    for _ in range(3):
        deliveries.send_due(timezone.now() + timedelta(days=1))
    history = WebhookDelivery.objects.get().history
    assert [each["status_code"] for each in history] == [500, 503, 204]
    for _ in range(30):
        deliveries.replay(WebhookDelivery.objects.all())
        deliveries.send_due(timezone.now())
    assert len(WebhookDelivery.objects.get().history) == 20


def test_a_budget_warning_is_an_event(owner, endpoint, there) -> None:
    BudgetWarning.objects.create(
        organization=owner.organization, api_key=owner.key, scope=f"k{owner.key.pk}",
        budget="daily_token_budget", period=timezone.now().date(), percent=80,
    )  # fmt: skip
    assert [events.collect(timezone.now()) for _ in range(2)] == [1, 0]
    assert WebhookDelivery.objects.get().data == {
        "message": f"Key {owner.key.name} has used 80 % of its daily token budget.",
        "budget": "daily_token_budget", "percent": 80,
        "period": timezone.now().date().isoformat(), "api_key_name": owner.key.name,
    }  # fmt: skip


@pytest.mark.parametrize("status", [500, 301, 404])
def test_a_refused_delivery_is_tried_again_with_the_same_id(owner, endpoint, there, status) -> None:
    there.statuses = [status]
    ended(owner)
    events.collect(timezone.now())
    assert deliveries.send_due(timezone.now()) == 0
    delivery = WebhookDelivery.objects.get()
    assert (delivery.status_code, delivery.attempts) == (status, 1)
    wait = delivery.due_at - timezone.now()
    assert timedelta(seconds=3) < wait < timedelta(seconds=6)
    assert deliveries.send_due(timezone.now()) == 0  # not yet
    assert deliveries.send_due(delivery.due_at) == 1
    assert [path for path, _, _ in there.received] == ["/hook?from=quire"] * 2  # no redirect
    first, second = (headers["webhook-id"] for _, headers, _ in there.received)
    assert first == second


def test_after_the_last_wait_a_delivery_is_given_up_and_can_be_sent_again(
    owner, endpoint, there
) -> None:
    there.statuses = [503] * (len(deliveries.WAITS) + 1)
    ended(owner)
    events.collect(timezone.now())
    now = timezone.now()
    while (due := WebhookDelivery.objects.get().due_at) is not None:
        deliveries.send_due(max(due, now))
    assert len(there.received) == len(deliveries.WAITS) + 1
    deliveries.replay(WebhookDelivery.objects.all())
    assert deliveries.send_due(timezone.now()) == 1


def test_private_networks_are_refused(owner, endpoint, there, settings) -> None:
    settings.WEBHOOKS_TO_PRIVATE_NETWORKS = False
    ended(owner)
    events.collect(timezone.now())
    deliveries.send_due(timezone.now())
    assert there.received == []
    assert "not a public address" in WebhookDelivery.objects.get().error


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "[::1]", "[::ffff:127.0.0.1]",
             "localhost", "[fe80::1]", "0.0.0.0", "100.64.0.1",  # noqa: S104
             "[64:ff9b::7f00:1]", "[64:ff9b:1::a00:1]", "[2002:a00:1::]", "[::a00:1]", "[fec0::1]",
             "224.0.0.1", "[ff02::1]"],
)  # fmt: skip
def test_no_form_of_a_private_address_is_public(host: str) -> None:
    with pytest.raises(sending.RefusedError):
        sending.post(f"http://{host}:9/", b"", {}, allows_private=False)


@pytest.mark.parametrize("address", ["1.1.1.1", "2606:4700::1111", "64:ff9b::101:101"])
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert sending._is_public(address)


def test_a_server_that_hangs_or_is_gone_is_an_error(owner, endpoint, there, monkeypatch) -> None:
    monkeypatch.setattr(sending, "SECONDS", 0.2)
    there.seconds = 0.6
    WebhookEndpoint.objects.create(organization=owner.organization, url="http://127.0.0.1:1/")
    ended(owner)
    events.collect(timezone.now())
    assert deliveries.send_due(timezone.now()) == 0
    assert all(row.error for row in WebhookDelivery.objects.all())
    assert WebhookDelivery.objects.count() == 2


def test_a_disabled_endpoint_gets_nothing(owner, endpoint, there) -> None:
    ended(owner)
    events.collect(timezone.now())
    WebhookEndpoint.objects.update(enabled=False)
    assert deliveries.send_due(timezone.now()) == 0
    assert there.received == []


def test_old_deliveries_are_deleted_once_they_are_over(owner, endpoint, there) -> None:
    ended(owner)
    events.collect(timezone.now())
    now = timezone.now()
    WebhookDelivery.objects.update(created_at=now - DELIVERIES_KEPT - timedelta(days=1))
    assert pruning.prune(now)["webhook deliveries"] == 0
    deliveries.send_due(now)
    assert pruning.prune(now - timedelta(days=2))["webhook deliveries"] == 0
    assert pruning.prune(now)["webhook deliveries"] == 1


@pytest.mark.parametrize(
    "url",
    ["ftp://a", "a.example", "https://u:p@a", "https://a#b", "http://", "https://[::1",
     "https://a\u2100b", "https://a/\xe4", "https://a/b c", "https://a:99999"],
)  # fmt: skip
def test_an_address_that_cannot_be_used_is_refused(owner, url: str) -> None:
    with pytest.raises(ValidationError):
        WebhookEndpoint(organization=owner.organization, url=url).full_clean()


def test_an_address_with_a_name_beyond_ascii_is_accepted(owner) -> None:
    url = "https://b\xfccher.example/?from=quire"
    WebhookEndpoint(organization=owner.organization, url=url).full_clean()
