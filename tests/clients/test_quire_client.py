"""The client on a broken network. tests/acceptance/test_quire_client.py runs it on a service."""

import json
import re
from pathlib import Path

import httpx
import pytest

import quire_client
from quire_client import AsyncQuire, Progress, Quire, QuireError

LINE = b'{"custom_id": "a", "url": "/v1/chat/completions"}\n'


class Service:
    """What the client asks of a service, answered from memory; `broken` counts the answers to lose
    and `busy` the refusals, by path."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.asked: list[str] = []
        self.bodies: list[dict] = []
        self.created: list[httpx.Request] = []
        self.keys: list[str] = []
        self.broken: dict[str, int] = {}
        self.busy: dict[str, int] = {}
        self.content = b"".join(b'{"custom_id": "%d"}\n' % n for n in range(200))
        self.cut_at: int | None = None
        self.status = "completed"

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/v1")
        self.asked.append(f"{request.method} {path}")
        self.keys.append(request.headers["authorization"])
        if self.busy.get(path):
            self.busy[path] -= 1
            return httpx.Response(503, headers={"retry-after": "0"}, json={})
        answer = self.answer(path, request)
        if self.broken.get(path):
            self.broken[path] -= 1
            raise httpx.ReadError("reset", request=request)
        return answer

    def answer(self, path: str, request: httpx.Request) -> httpx.Response:
        if path.endswith("/parts"):
            piece = re.search(rb"\r\n\r\n(.*)\r\n--", request.content, re.DOTALL)
            assert piece is not None
            self.parts.append(piece[1])
            return httpx.Response(200, json={"id": f"part_{len(self.parts)}"})
        if path.endswith("/complete"):
            self.bodies.append(json.loads(request.content))
            return httpx.Response(200, json={"file": {"id": "file-1"}})
        if path.endswith("/content"):
            return self.read(request)
        if path == "/batches":
            self.created.append(request)
            self.bodies.append(json.loads(request.content))
        if path.startswith("/batches"):
            counts = {"total": 2, "completed": 1, "failed": 1}
            return httpx.Response(200, json={
                "id": "batch_1", "status": self.status, "request_counts": counts, "model": "m",
                "output_file_id": "file-2", "error_file_id": None, "errors": None,
                "usage": {"input_tokens": 3_000_000, "output_tokens": 500_000,
                          "input_tokens_details": {"cached_tokens": 1_000_000}},
            })  # fmt: skip
        if path.startswith("/models"):
            prices = {"prompt": 1.0, "cached_prompt": 0.1, "completion": 4.0}
            return httpx.Response(200, json={"prices_per_million_tokens": prices})
        return httpx.Response(200, json={"id": "upload_1" if path == "/uploads" else "file-1"})

    def read(self, request: httpx.Request) -> httpx.Response:
        start = int((re.search(r"\d+", request.headers.get("range", "")) or ["0"])[0])
        if start >= len(self.content):
            return httpx.Response(416)
        content = self.content[start:]
        if self.cut_at is not None:
            cut, self.cut_at = self.cut_at, None
            return httpx.Response(200, stream=_Cut(content[:cut]))
        return httpx.Response(206 if start else 200, content=content)


class _Cut(httpx.SyncByteStream, httpx.AsyncByteStream):
    def __init__(self, content: bytes) -> None:
        self._content = content

    def __iter__(self):
        yield self._content
        raise httpx.ReadError("reset")

    async def __aiter__(self):
        yield self._content
        raise httpx.ReadError("reset")


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def quire(service):
    with Quire("http://quire/v1", "sk-a", httpx.MockTransport(service)) as quire:
        yield quire


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    monkeypatch.setattr(quire_client, "LONGEST_PAUSE", 0.0)
    monkeypatch.setattr(quire_client, "PART_BYTES", 1000)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(LINE * 60)
    return path


def test_a_large_file_goes_in_parts(quire, service, large) -> None:
    batch = quire.submit(large, metadata={"for": "a test"})
    assert batch["id"] == "batch_1"
    assert b"".join(service.parts) == large.read_bytes()
    completed, created = service.bodies
    assert completed == {"part_ids": ["part_1", "part_2", "part_3"]}
    assert created == {
        "input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h",
        "metadata": {"for": "a test"},
    }  # fmt: skip


def test_a_lost_answer_and_a_busy_server_cost_one_request(quire, service, large) -> None:
    service.broken["/uploads/upload_1/parts"] = 1
    service.busy["/uploads/upload_1/complete"] = 2
    quire.submit(large)
    assert service.bodies[0] == {"part_ids": ["part_2", "part_3", "part_4"]}
    assert service.parts[0] == service.parts[1]
    assert service.asked.count("POST /uploads/upload_1/complete") == 3


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
    monkeypatch.setattr(quire_client, "PART_BYTES", 700)
    quire.submit(large)
    assert b"".join(service.parts) == large.read_bytes()


def test_a_changed_file_is_another_batch(quire, service, large) -> None:
    quire.submit(large)
    large.write_bytes(LINE)
    quire.submit(large)
    assert service.asked.count("POST /batches") == 2


def test_a_cut_download_goes_on_at_its_next_byte(quire, service, tmp_path) -> None:
    service.cut_at = 100
    (path,) = quire.fetch("batch_1", tmp_path / "lines")
    assert path == tmp_path / "lines.output.jsonl"
    assert path.read_bytes() == service.content
    assert service.asked.count("GET /files/file-2/content") == 2


def test_a_download_that_was_complete_is_not_repeated(quire, service, tmp_path) -> None:
    (tmp_path / ".lines.output.jsonl.file-2").write_bytes(service.content)
    (path,) = quire.fetch("batch_1", tmp_path / "lines")
    assert path.read_bytes() == service.content


def test_what_a_running_batch_had_is_no_beginning_of_its_file(
    quire, service, tmp_path, monkeypatch
) -> None:
    """Its lines are those that have ended so far."""
    with monkeypatch.context() as patch:
        patch.setattr(quire_client, "TRIES", 1)
        service.status, service.cut_at = "in_progress", 100
        with pytest.raises(QuireError):
            quire.fetch("batch_1", tmp_path / "lines")
    service.status, service.content = "completed", b'{"custom_id": "first"}\n' + service.content
    (path,) = quire.fetch("batch_1", tmp_path / "lines")
    assert path.read_bytes() == service.content


def test_a_refusal_is_not_repeated(service) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        service.asked.append(request.url.path)
        error = {"message": "No such batch.", "code": "batch_not_found"}
        return httpx.Response(404, json={"error": error})

    with (
        Quire("http://quire/v1", "sk-a", httpx.MockTransport(refuse)) as quire,
        pytest.raises(QuireError, match="No such batch") as caught,
    ):
        quire.cancel("batch_2")
    assert (caught.value.status, caught.value.code) == (404, "batch_not_found")
    assert len(service.asked) == 1


def test_a_server_that_never_answers_is_an_error() -> None:
    def silent(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with (
        Quire("http://quire/v1", "sk-a", httpx.MockTransport(silent)) as quire,
        pytest.raises(QuireError, match="does not answer"),
    ):
        quire.get("batch_1")


def test_without_a_key_the_client_says_what_to_set(monkeypatch) -> None:
    monkeypatch.delenv("QUIRE_API_KEY", raising=False)
    with pytest.raises(QuireError, match="QUIRE_API_KEY"):
        Quire("http://quire/v1")


def test_progress_has_the_cost_so_far(quire) -> None:
    said: list[Progress] = []
    quire.watch("batch_1", said.append)
    assert said == [Progress("completed", 2, 1, 1, None, None, 2.0 + 0.1 + 2.0)]
    assert str(said[0]) == "2/2 lines, 1 failed, cost 4.10"


def test_progress_needs_no_prices(service) -> None:
    """A key may use an adapter without its base model, and a model may be removed."""

    def answer(request: httpx.Request) -> httpx.Response:
        if "/models/" in request.url.path:
            return httpx.Response(404, json={"error": {"message": "No such model."}})
        return service(request)

    said: list[Progress] = []
    with Quire("http://quire/v1", "sk-a", httpx.MockTransport(answer)) as quire:
        quire.watch("batch_1", said.append)
    assert [progress.cost for progress in said] == [None]


def test_prices_are_asked_for_again_after_a_failure(service, monkeypatch) -> None:
    monkeypatch.setattr(quire_client, "LOOK_EVERY", 0)
    service.status = "in_progress"

    def answer(request: httpx.Request) -> httpx.Response:
        if "/models/" in request.url.path and service.status == "in_progress":
            service.status = "completed"  # for the next look
            return httpx.Response(500, headers={"x-should-retry": "false"}, json={})
        return service(request)

    said: list[Progress] = []
    with Quire("http://quire/v1", "sk-a", httpx.MockTransport(answer)) as quire:
        quire.watch("batch_1", said.append)
    assert [progress.cost for progress in said] == [None, 4.1]


@pytest.mark.parametrize(
    ("seconds", "text"), [(9.4, "9s"), (75, "1m15"), (3600, "1h00"), (86_399.6, "24h00")]
)
def test_durations(seconds: float, text: str) -> None:
    assert quire_client._duration(seconds) == text


async def test_coroutines_do_the_same(service, large, tmp_path) -> None:
    service.cut_at = 100
    service.broken["/uploads/upload_1/parts"] = 1
    transport = httpx.MockTransport(service)
    async with AsyncQuire("http://quire/v1", "sk-a", transport) as quire:
        batch = await quire.submit(large)
        assert (await quire.watch(batch["id"]))["status"] == "completed"
        (path,) = await quire.fetch(batch["id"], tmp_path / "lines")
        assert (await quire.cancel(batch["id"]))["id"] == "batch_1"
        assert (await quire.resubmit(batch["id"]))["id"] == "batch_1"
    assert path.read_bytes() == service.content
    assert service.bodies[0] == {"part_ids": ["part_2", "part_3", "part_4"]}


def test_the_command_reports_what_went_wrong(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv("QUIRE_API_KEY", "sk-a")
    assert quire_client.main(["submit", str(tmp_path / "none.jsonl")]) == 1
    assert "is not a file" in capsys.readouterr().err


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
        pytest.raises(QuireError, match=r"batch_1, which this key does not see.*lines.*\.quire"),
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


def test_no_rows_are_no_batch(quire, service) -> None:
    assert list(quire.map([], str)) == []
    assert service.asked == []


@pytest.mark.parametrize("wait", ["nan", "-3", "inf", "soon"])
def test_a_wait_that_is_no_number_of_seconds_does_no_harm(service, wait) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if not service.asked:
            service.asked.append("refused")
            return httpx.Response(503, headers={"retry-after": wait}, json={})
        return service(request)

    with Quire("http://quire/v1", "sk-a", httpx.MockTransport(answer)) as quire:
        assert quire.get("batch_1")["id"] == "batch_1"


@pytest.mark.parametrize(
    "url", ["quire.example.com/v1", "ftp://quire/v1", "http:///v1", "http://::1:8000/v1", "//a"]
)
def test_a_base_url_that_is_none_is_refused_at_once(url: str) -> None:
    with pytest.raises(QuireError, match=r"http://\[::1\]:8000/v1"):
        Quire(url, "sk-a")


@pytest.mark.parametrize(
    "url", ["http://[::1]:8000/v1", "http://[::1]:8000/v1/", "https://[::1]/v1"]
)
def test_a_host_may_be_an_ipv6_address(service, url: str, large) -> None:
    hosts = set()

    def answer(request: httpx.Request) -> httpx.Response:
        hosts.add(request.url.host)
        return service(request)

    with Quire(url, "sk-a", httpx.MockTransport(answer)) as quire:
        quire.submit(large)
    assert hosts == {"::1"}


def test_a_key_is_read_without_the_line_break_of_its_file(service, monkeypatch) -> None:
    monkeypatch.setenv("QUIRE_API_KEY", "sk-a\n")
    with Quire("http://quire/v1", None, httpx.MockTransport(service)) as quire:
        quire.get("batch_1")
    assert service.keys == ["Bearer sk-a"]
    with pytest.raises(QuireError, match="API key"):
        Quire("http://quire/v1", "sk-\N{EN DASH}")


def test_a_request_that_is_still_running_is_asked_for_again(service, large) -> None:
    """The first answer was lost while the server made the batch."""
    refusals = [409]

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/batches" and refusals:
            return httpx.Response(refusals.pop(), headers={"retry-after": "0"}, json={})
        return service(request)

    with Quire("http://quire/v1", "sk-a", httpx.MockTransport(answer)) as quire:
        assert quire.submit(large)["id"] == "batch_1"
