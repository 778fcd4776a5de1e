"""Sixty harmful constraints at once, beside ordinary streams."""

import asyncio
import time

import httpx
import pytest

from tests.acceptance.service import MODEL, Installation
from tests.completions.grammars.hostile import ATTACKS, Fields

pytestmark = [pytest.mark.acceptance, pytest.mark.long]
PROCESSES = ("web", "worker", "cpu-worker", "valkey")
PATIENCE = 400.0
"""Seconds for an answer on a machine that is busy with other things as well."""
REFUSALS = (
    (400, "invalid_json"),
    (400, "invalid_grammar"),
    (400, "grammar_timeout"),
    (400, "grammar_error"),
    (503, "server_overloaded"),
)
"""The first error is for a body of more than 200 levels. `grammar_error` ends a grammar that became
too complex during generation. The last one comes only if the machine is so busy that a constraint
waits twenty seconds for its trial."""
STREAMS = 4
TOKENS = 150


async def attack(http: httpx.AsyncClient, fields: Fields) -> tuple[int, dict, float]:
    began = time.monotonic()
    body = {"model": MODEL, "prompt": [28], "max_tokens": 24, **fields}
    response = await http.post("/v1/completions", json=body)
    return response.status_code, response.json(), time.monotonic() - began


async def stream(http: httpx.AsyncClient, prompt: list[int]) -> float:
    """Seconds that a stream of ordinary text takes."""
    began = time.monotonic()
    body = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "stream": True,
    }
    tokens = 0
    async with http.stream("POST", "/v1/completions", json=body) as response:
        async for line in response.aiter_lines():
            tokens += line.startswith('data: {"id"')
    assert tokens
    return time.monotonic() - began


async def streams(http: httpx.AsyncClient, prompt: list[int]) -> float:
    """Run several streams at once. Returns the seconds of the slowest."""
    return max(await asyncio.gather(*(stream(http, prompt) for _ in range(STREAMS))))


async def siege(service: Installation, prompt: list[int]) -> tuple[float, float, dict]:
    """Return seconds of the streams alone and under attack, and the results of the attacks."""
    headers = {"Authorization": f"Bearer {service.key}"}
    limits = httpx.Limits(max_connections=100)
    async with httpx.AsyncClient(
        base_url=service.url, headers=headers, timeout=PATIENCE, limits=limits
    ) as http:
        await asyncio.gather(streams(http, prompt), attack(http, {"regex": "a"}))
        alone = await streams(http, prompt)
        besieged = asyncio.create_task(streams(http, prompt))
        answers = await asyncio.gather(*(attack(http, fields) for fields in ATTACKS.values()))
        return alone, await besieged, dict(zip(ATTACKS, answers, strict=True))


def test_hostile_constraints_harm_nobody(service: Installation, tokenize):
    before = {name: service.pid(name) for name in PROCESSES}
    alone, besieged, answers = asyncio.run(siege(service, tokenize("The sea")))
    assert {name: service.pid(name) for name in PROCESSES} == before
    for name, (status, body, seconds) in answers.items():
        print(
            f"{name:32} {status} {seconds:6.2f} s {body.get('error', {}).get('message', '')[:70]}"
        )
    print(f"streams: {alone:.1f} s alone, {besieged:.1f} s besieged")
    for name, (status, body, _) in answers.items():
        if status == 200:
            assert body["choices"][0]["finish_reason"] in ("stop", "length"), name
        else:
            code = body["error"]["code"]
            assert (status, code) in REFUSALS, (name, body)
    assert besieged < 20 * alone + 60  # a mask without end would take minutes
