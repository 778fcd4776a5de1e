"""LoRA adapters loaded, replaced and unloaded while a real engine runs, and is killed."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from tests.acceptance.service import Installation
from tests.acceptance.small_model import ADAPTER, SMALL
from tests.workers.engine.adapters import save_adapter

pytestmark = pytest.mark.acceptance

ORGANIZATION = "acme"
SMALL_WORKER = "worker-2"
TOKENS = 120
CALL = {
    "prompt": [9, 28, 100], "max_tokens": TOKENS, "seed": 3, "temperature": 0.8, "top_k": 5,
    "ignore_eos": True, "return_token_ids": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def admin(service: Installation) -> Iterator[httpx.Client]:
    """A client with the key of an organization's admin. The organization has two adapters in its
    folder; the first is the one of models.toml."""
    service.wait_served(SMALL)
    base = service.home / SMALL
    own = service.home / "lora" / ORGANIZATION
    shutil.copytree(base / ADAPTER, own / "first")
    save_adapter(own / "second", base, seed=5)
    command = ("create_api_key", "adapters", "--organization", ORGANIZATION, "--role", "admin")
    with service.http(service.manage(*command).strip()) as client:
        yield client


def change(admin: httpx.Client, verb: str, **body: object) -> str:
    answer = admin.post(f"/v1/{verb}_lora_adapter", json=body)
    assert answer.status_code == 200, answer.text
    return answer.text


def load(admin: httpx.Client, path: str, name: str = "mine", **body: object) -> str:
    return change(admin, "load", lora_name=name, lora_path=path, base_model_name=SMALL, **body)


def complete(client: httpx.Client, model: str, **body: object) -> list[int]:
    answer = client.post("/v1/completions", json={**CALL, "model": model, **body})
    ids: list[int] = answer.raise_for_status().json()["choices"][0]["token_ids"]
    return ids


def stream(client: httpx.Client, model: str, strike: Callable[[], None]) -> list[int]:
    """The tokens of a stream, in the midst of which something strikes."""
    ids: list[int] = []
    with client.stream(
        "POST", "/v1/completions", json={**CALL, "model": model, "stream": True}
    ) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            ids += json.loads(line.removeprefix("data: "))["choices"][0]["token_ids"]
            if len(ids) > 10 and strike is not None:
                strike()
                strike = None  # type: ignore[assignment]
    return ids


@pytest.mark.long
def test_a_stream_keeps_its_version_through_a_replacement_and_a_kill(
    service: Installation, admin: httpx.Client
) -> None:
    first = complete(admin, f"{SMALL}:{ADAPTER}")
    assert first != complete(admin, SMALL)
    assert load(admin, "first") == "Success: LoRA adapter 'mine' added successfully."
    assert complete(admin, f"{SMALL}:mine") == complete(admin, "mine") == first

    victim = service.pid(SMALL_WORKER)
    second: list[int] = []

    def strike() -> None:
        load(admin, "second", load_inplace=True)
        second.extend(complete(admin, "mine", max_tokens=5))
        shutil.rmtree(service.home / "lora" / ORGANIZATION / "first")
        service.kill(SMALL_WORKER)

    assert stream(admin, "mine", strike) == first
    assert second != first[:5]
    service.pid(SMALL_WORKER, besides=victim)
    assert complete(admin, "mine")[:5] == second

    assert change(admin, "unload", lora_name="mine").endswith("removed successfully.")
    assert admin.post("/v1/completions", json={**CALL, "model": "mine"}).status_code == 404


@pytest.mark.wide
def test_jobs_in_the_background_end_with_an_adapter_that_was_unloaded(
    service: Installation, admin: httpx.Client, http: httpx.Client
) -> None:
    load(admin, str(service.home / "lora" / ORGANIZATION / "second"), "other")
    expected = complete(admin, f"{SMALL}:other")
    call = {**CALL, "model": "other", "background": True}
    locations = [
        admin.post("/v1/completions", json=call).raise_for_status().headers["Location"]
        for _ in range(3)
    ]
    assert http.post("/v1/completions", json={**CALL, "model": "other"}).status_code == 404
    change(admin, "unload", lora_name="other")
    for location in locations:
        body = admin.get(location, params={"wait": 30}).json()
        while body["status"] in ("queued", "in_progress"):
            body = admin.get(location, params={"wait": 30}).json()
        assert body["choices"][0]["token_ids"] == expected


def test_what_does_not_fit_the_model_says_which_layer(
    service: Installation, admin: httpx.Client, tmp_path: Path
) -> None:
    other = shutil.copytree(
        service.home / "lora" / ORGANIZATION / "second",
        service.home / "lora" / ORGANIZATION / "misfit",
    )
    path = other / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes().replace(b"layers.0.self_attn", b"layers.9.self_attn"))
    answer = admin.post(
        "/v1/load_lora_adapter",
        json={"lora_name": "misfit", "lora_path": "misfit", "base_model_name": SMALL},
    )
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "unsupported_adapter")
    assert "the model has no layer model.layers.9.self_attn" in error["message"]
    assert f"{SMALL}:misfit" not in admin.get("/v1/models").text
