"""No server that receives webhooks can stop or hold up the deliveries to others."""

import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils import timezone

from completions.models import WebhookDelivery, WebhookEndpoint, WebhookEvent
from completions.outgoing import Requests
from completions.webhooks import deliveries, sending
from tests.completions.webhooks.receiver import receiver

pytestmark = pytest.mark.django_db


@contextmanager
def answering(
    pieces: Iterable[bytes], pause: float = 0.0, on_sent: Callable[[bytes], None] = lambda _: None
) -> Iterator[str]:
    """A server that sends one client these bytes, piece by piece."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            client, _ = server.accept()
            with client:
                client.recv(65536)
                try:
                    for piece in pieces:
                        client.sendall(piece)
                        on_sent(piece)
                        time.sleep(pause)
                except OSError:  # the client has had enough
                    pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/"
        thread.join(5)


@pytest.mark.parametrize(
    "pieces",
    [
        [b"HTTP/1.1 200 OK\r\n", b"x: ", *[b"x"] * 1200],
        [b"HTTP/1.1 100 Continue\r\n\r\n"] * 1200,
    ],
)
def test_an_answer_that_never_ends_is_cut_off(monkeypatch, pieces: list[bytes]) -> None:
    monkeypatch.setattr(sending, "SECONDS", 0.3)
    sent: list[bytes] = []
    with answering(pieces, 0.05, sent.append) as url, pytest.raises(TimeoutError):
        sending.post(url, b"{}", {}, allows_private=True)
    assert len(sent) < len(pieces) / 2


def test_an_answer_with_u_0000_is_stored_as_an_error(owner, settings) -> None:
    settings.WEBHOOKS_TO_PRIVATE_NETWORKS = True
    with answering([b"no\x00HTTP\x1b[2J\r\n\r\n"]) as url:
        endpoint = WebhookEndpoint.objects.create(organization=owner.organization, url=url)
        WebhookDelivery.objects.create(endpoint=endpoint, type=WebhookEvent.BATCH_COMPLETED)
        assert deliveries.send_due(timezone.now()) == 0
    delivery = WebhookDelivery.objects.get()
    assert (delivery.error, delivery.attempts) == ("no?HTTP?[2J", 1)


def test_endpoints_take_turns(owner, stranger, settings) -> None:
    settings.WEBHOOKS_TO_PRIVATE_NETWORKS = True
    busy, other = (
        WebhookEndpoint.objects.create(organization=each.organization, url="http://127.0.0.1:1/")
        for each in (owner, stranger)
    )
    for n in range(deliveries.BATCH_SIZE + 5):
        WebhookDelivery.objects.create(
            endpoint=busy, type=WebhookEvent.BATCH_COMPLETED, subject=str(n)
        )
    with receiver() as there:
        WebhookEndpoint.objects.filter(pk=other.pk).update(url=there.url)
        WebhookDelivery.objects.create(endpoint=other, type=WebhookEvent.BATCH_COMPLETED)
        assert deliveries.send_due(timezone.now()) == 1


def test_an_endpoint_that_is_deleted_meanwhile_repeats_no_other_delivery(
    owner, settings, monkeypatch
) -> None:
    settings.WEBHOOKS_TO_PRIVATE_NETWORKS = True
    with receiver() as there:
        gone, other = (
            WebhookEndpoint.objects.create(organization=owner.organization, url=there.url)
            for _ in range(2)
        )
        for endpoint in (gone, other):
            WebhookDelivery.objects.create(endpoint=endpoint, type=WebhookEvent.BATCH_COMPLETED)
        record = deliveries._record

        def late(*args: Any) -> bool:
            WebhookEndpoint.objects.filter(pk=gone.pk).delete()
            return record(*args)

        monkeypatch.setattr(deliveries, "_record", late)
        deliveries.send_due(timezone.now())
        assert deliveries.send_due(timezone.now()) == 0
    assert len(there.received) == 2
    assert WebhookDelivery.objects.get().delivered_at


def test_a_name_that_is_not_resolved_holds_nobody(monkeypatch) -> None:
    """The system's own time limit may be minutes."""
    monkeypatch.setattr(sending, "SECONDS", 0.3)
    answer = threading.Event()

    def slow(*_args: object, **_options: object) -> list[object]:
        answer.wait(60)
        raise socket.gaierror("no such host")

    monkeypatch.setattr(sending, "getaddrinfo", slow)
    monkeypatch.setattr(sending, "_REQUESTS", Requests(1))
    with pytest.raises(TimeoutError, match=r"slow\.example did not answer within 0\.3 s"):
        sending.post("http://slow.example/", b"{}", {}, allows_private=True)
    with pytest.raises(TimeoutError, match="too many requests"):  # no thread beyond the limit
        sending.post("http://slow.example/", b"{}", {}, allows_private=True)
    answer.set()


def test_all_addresses_of_a_name_are_tried(monkeypatch) -> None:
    """A name such as localhost may have an IPv6 address at which nothing listens."""

    def both(_host: str, port: int, **_options: object) -> list[object]:
        return [(0, 0, 0, "", (address, port)) for address in ("127.0.0.2", "127.0.0.1")]

    monkeypatch.setattr(sending, "getaddrinfo", both)
    with receiver() as there:
        assert sending.post(there.url, b"{}", {}, allows_private=True) == 204


def test_an_address_that_drops_packets_leaves_time_for_the_others(monkeypatch) -> None:
    clock, shares = SimpleNamespace(now=100.0), []

    def drop(address: tuple[str, int], timeout: float) -> socket.socket:
        shares.append(timeout)
        if len(shares) < 4:
            clock.now += timeout
            raise TimeoutError
        return socket.create_connection(address, 10)

    def many(_host: str, port: int, **_options: object) -> list[object]:
        return [(0, 0, 0, "", ("127.0.0.1", port))] * 50

    monkeypatch.setattr(sending, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(sending, "getaddrinfo", many)
    monkeypatch.setattr(sending, "create_connection", drop)
    with receiver() as there:
        assert sending.post(there.url, b"{}", {}, allows_private=True) == 204
    assert shares == [2.5, 2.5, 2.5, 2.5]


def test_a_name_that_does_not_exist_is_an_error(monkeypatch) -> None:
    def none(*_args: object, **_options: object) -> list[object]:
        raise socket.gaierror("no such host")

    monkeypatch.setattr(sending, "getaddrinfo", none)
    with pytest.raises(OSError, match="no such host"):
        sending.post("http://none.example/", b"{}", {}, allows_private=True)
