"""The client on a broken network. tests/acceptance/test_quire_client.py runs it on a service."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import httpx
import pytest

import quire_client
from quire_client import AsyncQuire, Progress, Quire, QuireError, batches, exchange
from quire_client.progress import format_duration


def test_a_lost_answer_and_a_busy_server_cost_one_request(quire, service, large) -> None:
    service.broken["/uploads/upload_1/parts"] = 1
    service.busy["/uploads/upload_1/complete"] = 2
    quire.submit(large)
    assert service.bodies[0] == {"part_ids": ["part_2", "part_3", "part_4"]}
    assert service.parts[0] == service.parts[1]
    assert service.asked.count("POST /uploads/upload_1/complete") == 3


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
        patch.setattr(exchange, "TRIES", 1)
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
    monkeypatch.setattr(batches, "LOOK_EVERY", 0)
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
    assert format_duration(seconds) == text


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


def test_a_resubmission_whose_answer_was_lost_is_recognised(service) -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return service(request)

    service.broken["/batches/batch_1/resubmit"] = 1
    with Quire("http://quire/v1", "sk-a", httpx.MockTransport(answer)) as quire:
        quire.resubmit("batch_1")
        quire.resubmit("batch_1")
    first, again, other = (request.headers["idempotency-key"] for request in asked)
    assert first == again != other


def test_the_command_reports_what_went_wrong(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setenv("QUIRE_API_KEY", "sk-a")
    assert quire_client.main(["submit", str(tmp_path / "none.jsonl")]) == 1
    assert "is not a file" in capsys.readouterr().err


@pytest.mark.parametrize(("would_run", "code"), [(True, 0), (False, 1)])
def test_a_dry_run_that_would_not_run_is_a_failure(monkeypatch, tmp_path, would_run, code) -> None:
    monkeypatch.setenv("QUIRE_API_KEY", "sk-a")
    monkeypatch.setattr(Quire, "dry_run", lambda *_, **__: {"would_run": would_run})
    (tmp_path / "lines.jsonl").touch()
    assert quire_client.main(["dry-run", str(tmp_path / "lines.jsonl")]) == code


@pytest.mark.parametrize("verb", ["submit", "dry-run"])
def test_the_command_sends_what_its_options_say(monkeypatch, tmp_path, verb) -> None:
    sent = []

    def note(_: Quire, file: Path, **options: object) -> dict[str, object]:
        sent.append(options)
        return {"id": "batch_1", "would_run": True}

    monkeypatch.setenv("QUIRE_API_KEY", "sk-a")
    monkeypatch.setattr(Quire, "submit", note)
    monkeypatch.setattr(Quire, "dry_run", note)
    (tmp_path / "lines.jsonl").touch()
    plain = {"completion_window": "24h", "on_invalid": "skip"}
    for options in ([], ["--close", "--receipts"]):
        assert quire_client.main([verb, str(tmp_path / "lines.jsonl"), *options]) == 0
    assert sent == [plain, {**plain, "close": True, "receipts": True}]


def test_a_closed_pipe_is_not_an_error(tmp_path) -> None:
    program = (
        "import sys, quire_client as q; q.Quire.cancel = lambda *_: {'status': 'x'};"
        "sys.exit(q.main(['cancel', 'batch_1']))"
    )
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", program],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(quire_client.__file__).parents[1],
        env={**os.environ, "QUIRE_API_KEY": "sk-a"},
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, "")


def test_no_rows_are_no_batch(quire, service) -> None:
    assert list(quire.map([], str)) == []
    assert service.asked == []


def test_rows_are_read_while_their_batch_runs(quire, service, monkeypatch) -> None:
    monkeypatch.setattr(batches, "LOOK_EVERY", 0)
    service.status = "in_progress"
    answer = {"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]}
    lines = [
        {"custom_id": str(n), "response": {"status_code": 200, "body": answer}} for n in range(3)
    ]
    service.content = json.dumps(lines[1]).encode() + b"\n"
    rows = quire.map("abc", str)
    assert next(rows) == ("b", "yes")
    service.status = "completed"
    service.content = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    assert list(rows) == [("a", "yes"), ("c", "yes")]


def test_a_batch_of_rows_that_fails_raises(quire, service) -> None:
    service.status, service.content = "failed", b""
    with pytest.raises(QuireError, match="batch_1 failed"):
        list(quire.map("ab", str))


def test_one_file_is_the_whole_command(tmp_path) -> None:
    """As docs/client.md makes it, for machines without pip."""
    folder = Path(quire_client.__file__).parents[1]
    file = tmp_path / "quire.pyz"
    subprocess.run(
        [sys.executable, "-m", "zipapp", folder, "-m", "quire_client.command:run", "-o", file],
        check=True,
    )
    done = subprocess.run(
        [sys.executable, file, "get"], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 2
    assert done.stderr.startswith("usage: quire ")
    without_key = {name: value for name, value in os.environ.items() if name != "QUIRE_API_KEY"}
    done = subprocess.run(
        [sys.executable, file, "fetch", "batch"], capture_output=True, cwd=tmp_path, env=without_key
    )
    assert done.returncode == 1


def test_types_are_for_those_who_use_it() -> None:
    folder = Path(quire_client.__file__).parent
    settings = tomllib.loads((folder.parent / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert settings["packages"] == [folder.name]
    assert all((folder / name).exists() for name in settings["package-data"][folder.name])


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
    "url",
    [
        "quire.example.com/v1",
        "ftp://quire/v1",
        "http:///v1",
        "http://::1:8000/v1",
        "//a",
        "http://xn--a/v1",
        "http://quire..example.com/v1",
        f"http://{'a' * 64}/v1",
        "http://quire:65536/v1",
        "http://quire:0/v1",
        "http://quire:-1/v1",
        "http://quire/v1?key=a",
        "http://quire/v1#a",
    ],
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
