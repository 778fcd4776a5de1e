"""A receiver's events as an operator sets them up in a real browser: chosen, tried, looked up and
signed with a secret that is rotated."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from openai import OpenAI

from tests.acceptance.pages import browser
from tests.acceptance.service import MODEL, ScriptedInstallation, wait_until

pytestmark = [pytest.mark.acceptance, pytest.mark.long]
TABLES = "/admin/completions"
LINE = {"custom_id": "1", "method": "POST", "url": "/v1/completions"}
BODY = {"model": MODEL, "prompt": [9703]}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ScriptedInstallation]:
    """The receiver is on this machine, where a usual service sends nothing."""
    home = tmp_path_factory.mktemp("webhooks")
    own = {"QUIRE_WEBHOOKS_TO_PRIVATE_NETWORKS": "true"}
    with ScriptedInstallation(home, 0.02, **own) as installation:
        yield installation


@contextmanager
def receiver() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The address of a server, and the type and the signatures of each event that it got."""
    received: list[tuple[str, str]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            received.append((event["type"], self.headers["webhook-signature"]))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hook", received
        server.shutdown()
        thread.join()


def act(page: browser.Page, service: ScriptedInstallation, action: str, said: str) -> None:
    """Run an action of the list on its only endpoint."""
    page.goto(f"{service.url}{TABLES}/webhookendpoint/")
    page.locator("input.action-select").check()
    page.select_option("[name=action]", label=action)
    page.get_by_role("button", name="Run").click()
    page.get_by_text(said).first.wait_for()


def find_delivered(page: browser.Page, service: ScriptedInstallation, kind: str, count: int) -> Any:
    """The rows of so many events of a type, once they are delivered."""
    rows = page.locator("#result_list tbody tr", has_text="delivered").filter(has_text=kind)
    address = f"{service.url}{TABLES}/webhookdelivery/"
    browser.reload_until(page, address, rows.nth(count - 1))
    return rows


def test_an_endpoint_gets_what_it_chose(page: browser.Page, service: ScriptedInstallation) -> None:
    with receiver() as (address, received):
        page.goto(f"{service.url}{TABLES}/webhookendpoint/add/")
        page.select_option("[name=organization]", label="default")
        page.fill("[name=url]", address)
        for box in page.locator("[name=events]").all():
            box.set_checked(box.input_value() == "batch.cancelled", force=True)
        page.locator("[name=_save]").click()
        page.get_by_text("was added successfully").wait_for()

        act(page, service, "Send a test event", "is on its way to")
        find_delivered(page, service, "Webhook Test", 1).get_by_role("link").first.click()
        assert "204, after" in page.locator("#content").inner_text()

        act(page, service, "Rotate the secret", "has a new secret")
        act(page, service, "Send a test event", "is on its way to")
        find_delivered(page, service, "Webhook Test", 2)
        signatures = [len(signed.split()) for _, signed in received]
        assert signatures == [1, 2]  # the earlier secret signs too

        with service.client() as client:
            run_batches(client)
        find_delivered(page, service, "Batch Cancelled", 1)
        assert [kind for kind, _ in received] == ["webhook.test", "webhook.test", "batch.cancelled"]


def run_batches(client: OpenAI) -> None:
    """One batch completes, then one is cancelled."""
    short, long = (create_batch(client, tokens) for tokens in (3, 4000))
    wait_until(lambda: client.batches.retrieve(short).status == "completed")
    client.batches.cancel(long)


def create_batch(client: OpenAI, tokens: int) -> str:
    line = {**LINE, "body": {**BODY, "max_tokens": tokens, "ignore_eos": True}}
    file = client.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    ).id
