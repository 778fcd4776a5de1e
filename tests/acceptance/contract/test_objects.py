"""Every row of the contract's section 5: models, files, batches, and the way to token ids."""

import time
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from tests.acceptance.contract.object_rows import DENIED, FIELDS, TAKEN, USUAL, Denied, Taken
from tests.acceptance.contract.rows import ABSENT
from tests.acceptance.small_model import SMALL

pytestmark = pytest.mark.acceptance

LINE = (
    b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", '
    b'"body": {"model": "%s", "prompt": [5], "max_tokens": 1}}\n' % SMALL.encode()
)
Ids = Mapping[str, str]


@pytest.fixture(scope="module")
def ids(service) -> Ids:
    """Ids of a file, of an ended batch of it and of its output. There are other files too."""
    service.wait_served(SMALL)
    with service.http() as http:
        form = {"data": {"purpose": "batch"}, "files": {"file": LINE}}
        http.post("/v1/files", **form)
        file = http.post("/v1/files", **form).json()["id"]
        wanted = {**USUAL["/v1/batches"], "input_file_id": file}
        batch = http.post("/v1/batches", json=wanted).json()["id"]
        deadline = time.monotonic() + 120
        while (seen := http.get(f"/v1/batches/{batch}").json())["status"] != "completed":
            assert time.monotonic() < deadline, seen
            time.sleep(0.1)
    return {"file": file, "batch": batch, "output": seen["output_file_id"], "small": SMALL}


def ask(http: httpx.Client, row: Taken | Denied, ids: Ids) -> httpx.Response:
    def named(value: Any) -> Any:
        return value.format(**ids) if isinstance(value, str) and value.startswith("{") else value

    path, query = row.path.format(**ids), {name: named(value) for name, value in row.query.items()}
    if row.body is None:
        return http.request(row.method, path, params=query)
    body = {**USUAL.get(row.path, {}), **row.body}
    body = {name: named(value) for name, value in body.items() if value is not ABSENT}
    if row.path != "/v1/files":
        return http.request(row.method, path, params=query, json=body)
    parts = {
        name: ("a.jsonl", value) if name == "file" else (None, value)
        for name, value in body.items()
    }
    return http.request(row.method, path, params=query, files=parts)


@pytest.mark.parametrize("path", FIELDS)
def test_every_field_has_rows(path: str) -> None:
    usual = set(USUAL[path])
    taken = {name for row in TAKEN if row.path == path for name in row.body or ()}
    assert taken | usual >= FIELDS[path]
    refused = {row.param.split(".")[0].split("[0")[0].split("[1")[0] for row in DENIED
               if row.path == path and row.param}  # fmt: skip
    assert refused >= FIELDS[path]


def test_what_is_taken_shows(http: httpx.Client, ids: Ids) -> None:
    wrong = []
    for row in TAKEN:
        answer = ask(http, row, ids)
        if answer.status_code != 200 or not row.check(answer.json()):
            wrong.append((row.method, row.path, row.body, row.query, answer.text[:600]))
        if answer.json().get("held"):  # it would be fed, in vain, beside all later tests
            http.post(f"/v1/batches/{answer.json()['id']}/cancel").raise_for_status()
    assert not wrong, "\n".join(map(str, wrong))


def test_what_is_refused_says_where(http: httpx.Client, ids: Ids) -> None:
    wrong = []
    for row in DENIED:
        answer = ask(http, row, ids)
        error = answer.json().get("error", {})
        found = (answer.status_code, error.get("code"), error.get("param"))
        if found != (row.status, row.code, row.param):
            wrong.append((row, answer.status_code, answer.text[:300]))
    assert not wrong, "\n".join(map(str, wrong))


def test_what_files_hold(http: httpx.Client, ids: Ids) -> None:
    content = http.get(f"/v1/files/{ids['file']}/content")
    assert (content.content, content.headers["content-type"]) == (LINE, "application/jsonl")
    assert content.headers["content-disposition"].startswith("attachment; filename")
    line = http.get(f"/v1/files/{ids['output']}/content").json()
    assert {"id", "custom_id", "response", "error"} <= set(line)
    assert set(line["response"]) == {"status_code", "request_id", "body"}


def test_an_idle_file_is_deleted(http: httpx.Client) -> None:
    form = {"data": {"purpose": "batch"}, "files": {"file": LINE}}
    file = http.post("/v1/files", **form).json()["id"]
    gone = http.delete(f"/v1/files/{file}").json()
    assert gone == {"id": file, "object": "file", "deleted": True}
    assert http.get(f"/v1/files/{file}").status_code == 404
