"""A file becomes one batch, whatever is lost on the way."""

import httpx
import pytest

from quire_client import Quire, QuireError, submission
from tests.clients.memory_service import LINE


def test_a_large_file_goes_in_parts(quire, service, large) -> None:
    batch = quire.submit(large, metadata={"for": "a test"})
    assert batch["id"] == "batch_1"
    assert b"".join(service.parts) == large.read_bytes()
    completed, created = service.bodies
    assert completed == {"part_ids": ["part_1", "part_2", "part_3"]}
    assert created == {
        "input_file_id": "file-1",
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "metadata": {"for": "a test"},
    }


def test_an_interrupted_upload_goes_on_with_its_next_part(quire, service, large) -> None:
    def interrupted(request: httpx.Request) -> httpx.Response:
        if len(service.parts) == 2:
            raise KeyboardInterrupt
        return service(request)

    with (
        Quire("http://quire/v1", "sk-a", httpx.MockTransport(interrupted)) as first,
        pytest.raises(KeyboardInterrupt),
    ):
        first.submit(large)
    assert len(service.parts) == 2
    quire.submit(large)
    assert b"".join(service.parts) == large.read_bytes()
    # A third time, it is the same batch.
    service.asked.clear()
    quire.submit(large)
    assert service.asked == ["GET /batches/batch_1"]


def test_another_version_of_the_client_goes_on_with_the_same_parts(
    service, quire, large, monkeypatch
) -> None:
    def interrupted(request: httpx.Request) -> httpx.Response:
        if len(service.parts) == 1:
            raise KeyboardInterrupt
        return service(request)

    with (
        Quire("http://quire/v1", "sk-a", httpx.MockTransport(interrupted)) as first,
        pytest.raises(KeyboardInterrupt),
    ):
        first.submit(large)
    monkeypatch.setattr(submission, "PART_BYTES", 700)
    quire.submit(large)
    assert b"".join(service.parts) == large.read_bytes()


def test_a_changed_file_is_another_batch(quire, service, large) -> None:
    quire.submit(large)
    large.write_bytes(LINE)
    quire.submit(large)
    assert service.asked.count("POST /batches") == 2


def _missing(code: str) -> httpx.Response:
    return httpx.Response(404, json={"error": {"message": "It is gone.", "code": code}})


@pytest.mark.parametrize("size", [10, 60])
@pytest.mark.parametrize("verb", ["submit", "dry_run"])
def test_a_file_that_the_server_lost_is_uploaded_again(service, tmp_path, size, verb) -> None:
    """It expired or was deleted between two commands."""
    path, lost = tmp_path / "lines.jsonl", []
    path.write_bytes(LINE * size)

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST" and request.url.path == "/v1/batches" and not lost:
            lost.append(request)
            return _missing("file_not_found")
        return service(request)

    with Quire("http://quire/v1", "sk-a", httpx.MockTransport(answer)) as quire:
        getattr(quire, verb)(path)
    uploads = "POST /files" if size == 10 else "POST /uploads"
    assert service.asked.count(uploads) == 2
    assert service.asked.count("POST /batches") == 1


def test_a_file_that_is_lost_each_time_is_an_error(service, large) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return _missing("file_not_found") if request.url.path == "/v1/batches" else service(request)

    with (
        Quire("http://quire/v1", "sk-a", httpx.MockTransport(answer)) as quire,
        pytest.raises(QuireError, match="It is gone"),
    ):
        quire.submit(large)
    assert service.asked.count("POST /uploads") == 2


def test_a_batch_that_the_key_does_not_see_is_not_run_twice(service, quire, large) -> None:
    """It may belong to another key; its lines would be paid for again."""
    quire.submit(large)

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET" and request.url.path == "/v1/batches/batch_1":
            return _missing("batch_not_found")
        return service(request)

    with (
        Quire("http://quire/v1", "sk-a", httpx.MockTransport(answer)) as again,
        pytest.raises(QuireError, match=r"batch_1, which this key cannot see.*lines.*\.quire"),
    ):
        again.submit(large)
    assert service.asked.count("POST /batches") == 1


def test_an_upload_whose_file_was_deleted_begins_again(service, large) -> None:
    """The client was interrupted before it read that the upload is complete."""
    completions = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/complete"):
            completions.append(request)
            if len(completions) == 1:
                return httpx.Response(200, json={"file": None})
        return service(request)

    with Quire("http://quire/v1", "sk-a", httpx.MockTransport(answer)) as quire:
        quire.submit(large)
    assert service.asked.count("POST /uploads") == 2


def test_a_pilot_is_one_batch_however_often_it_is_asked_for(quire, service, large) -> None:
    service.broken["/batches"] = 1
    quire.dry_run(large, pilot=5)
    quire.dry_run(large, pilot=5)
    keys = {request.headers.get("idempotency-key") for request in service.created}
    assert len(service.created) == 2
    assert len(keys) == 1
    assert keys != {None}
    assert service.bodies[-1]["dry_run"] is True


def test_the_endpoint_is_that_of_the_first_line_that_is_not_blank(quire, service, tmp_path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"\xef\xbb\xbf\r\n\n \n" + LINE)
    quire.submit(path)
    assert service.bodies[-1]["endpoint"] == "/v1/chat/completions"


@pytest.mark.parametrize("beginning", ["{\r", '{"a": "\x85", ', '{"a": "\u2028", '], ids=ascii)
def test_only_a_line_feed_ends_the_first_line(quire, service, tmp_path, beginning) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(beginning.encode() + LINE.removeprefix(b"{"))
    quire.submit(path)
    assert service.bodies[-1]["endpoint"] == "/v1/chat/completions"


def test_a_request_that_is_still_running_is_asked_for_again(service, large) -> None:
    """The first answer was lost while the server made the batch."""
    refusals = [409]

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/batches" and refusals:
            return httpx.Response(refusals.pop(), headers={"retry-after": "0"}, json={})
        return service(request)

    with Quire("http://quire/v1", "sk-a", httpx.MockTransport(answer)) as quire:
        assert quire.submit(large)["id"] == "batch_1"
