"""A seed gives the same tokens over HTTP, whatever else runs: alone, beside others, from cached
prefixes, and after its worker was killed."""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.acceptance.conftest import METRICS_TOKEN
from tests.acceptance.service import MODEL_FOLDER, Installation
from tests.workers.engine.backends.cpu.test_decoder import skip_without
from workers.engine.backends.cpu.layers.library import load_library

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.long,
    pytest.mark.skipif(load_library() is None, reason="needs the C kernels"),
]

WORKERS = {"bfloat16": "worker", "int8": "worker-2"}
"""The process of each type's model."""
SEEDS = 24
TOKENS = 32
NEIGHBOURS = 16
TEMPERATURES = (0.0, 0.4, 0.8, 1.0, 1.4)
PASSAGE = (
    "The lighthouse stood at the end of a long spit of shingle, and in winter the sea came over "
    "the road on both sides. The keeper kept a boat for those days, a barrel of salted herring, "
    "and a ledger in which he wrote the weather. "
)
PROMPTS = ("On Monday", "He", "The answer is", "1, 2, 3,", "def main():", "Once upon a time")
Said = dict[int, list[int]]
"""The token ids of a request by choice."""


class RoundedModels(Installation):
    """The demo model in two types, with less cache than the requests below fill together."""

    def __init__(self, home) -> None:
        super().__init__(home, QUIRE_SHUTDOWN_GRACE="1", QUIRE_METRICS_TOKEN=METRICS_TOKEN)
        (home / "models.toml").write_text(
            "".join(
                f'[models.{dtype}]\npath = "{MODEL_FOLDER}"\ndtype = "{dtype}"\n'
                "text_prompts = true\nmax_model_len = 512\nmax_num_seqs = 32\n"
                f"max_num_batched_tokens = 256\nkv_cache_bytes = {24 * 2**20}\n"
                for dtype in WORKERS
            )
        )


@pytest.fixture(scope="module")
def service(tmp_path_factory) -> Iterator[Installation]:
    for dtype in WORKERS:
        skip_without(dtype)
    with RoundedModels(tmp_path_factory.mktemp("seeds")) as installation:
        for model in WORKERS:
            installation.wait_served(model)
        yield installation


def request(model: str, seed: int) -> dict[str, Any]:
    """Every third begins with the same passage, and every fourth has several choices."""
    beginning = PASSAGE if seed % 3 == 0 else ""
    return {
        "model": model,
        "prompt": f"{beginning}{PROMPTS[seed % len(PROMPTS)]} {seed}",
        "seed": seed,
        "temperature": TEMPERATURES[seed % len(TEMPERATURES)],
        "max_tokens": TOKENS,
        "n": 3 if seed % 4 == 0 else 1,
        "extra_body": {"return_token_ids": True, "ignore_eos": True},
    }


async def answer(client: openai.AsyncOpenAI, body: dict[str, Any]) -> tuple[Said, int]:
    """What a call says, and how many tokens of its prompt were cached."""
    completion = await client.completions.create(**body)
    said = {choice.index: choice.token_ids for choice in completion.choices}
    return said, completion.usage.prompt_tokens_details.cached_tokens


async def alone(client: openai.AsyncOpenAI, model: str) -> list[Said]:
    """One after the other, nothing cached."""
    found = []
    for seed in range(SEEDS):
        body = request(model, seed)
        body["extra_body"] = body["extra_body"] | {"cache_salt": f"alone {seed}"}
        said, cached = await answer(client, body)
        assert cached == 0
        found.append(said)
    return found


async def neighbour(client: openai.AsyncOpenAI, model: str, number: int) -> None:
    for turn in range(3):
        await client.completions.create(
            model=model, prompt=f"{number} {PROMPTS[number % len(PROMPTS)]}", top_p=0.9,
            temperature=TEMPERATURES[(number + turn) % len(TEMPERATURES)], n=1 + number % 2,
            max_tokens=7 + 5 * number,
        )  # fmt: skip


async def amid(client: openai.AsyncOpenAI, model: str) -> tuple[list[Said], list[int]]:
    """All at once, beside as many others."""
    others = [neighbour(client, model, number) for number in range(NEIGHBOURS)]
    found = asyncio.gather(*(answer(client, request(model, seed)) for seed in range(SEEDS)))
    await asyncio.gather(found, *others)
    said, cached = zip(*found.result(), strict=True)
    return list(said), list(cached)


async def preempted(service: Installation, model: str) -> None:
    """Wait until a heartbeat reports a preemption."""
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {METRICS_TOKEN}"}) as client:
        for _ in range(1000):
            page = (await client.get(f"{service.url}/metrics")).text
            samples = [s for f in text_string_to_metric_families(page) for s in f.samples]
            found = [s for s in samples if s.name == "quire_num_preemptions_total"]
            if any(s.value > 0 and model in s.labels.values() for s in found):
                return
            await asyncio.sleep(0.2)
    raise AssertionError("no sequence was preempted")


async def stream(client: openai.AsyncOpenAI, model: str, seed: int, said: Said) -> Said:
    """Add to ``said`` as chunks come."""
    async for chunk in await client.completions.create(**request(model, seed), stream=True):
        for choice in chunk.choices:
            said[choice.index] = said.get(choice.index, []) + choice.token_ids
    return said


async def across_a_kill(
    service: Installation, client: openai.AsyncOpenAI, model: str
) -> tuple[list[Said], int]:
    """All streams at once, their worker killed between. Also returns how many had begun then, and
    had not ended."""
    worker = WORKERS[model]
    victim = service.pid(worker)
    seen: list[Said] = [{} for _ in range(SEEDS)]
    streams = [
        asyncio.create_task(stream(client, model, seed, said)) for seed, said in enumerate(seen)
    ]

    def begun() -> int:
        return sum(any(len(ids) > 3 for ids in said.values()) for said in seen)

    while begun() < SEEDS // 2 and not all(each.done() for each in streams):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    service.kill(worker)
    cut = sum(bool(said) and not task.done() for said, task in zip(seen, streams, strict=True))
    said = list(await asyncio.gather(*streams))
    assert service.pid(worker) != victim
    return said, cut


@pytest.mark.parametrize("model", WORKERS)
def test_all_seeds_repeat(service: Installation, model: str) -> None:
    with service.http() as http:
        found = http.get(f"/v1/models/{model}").json()
    assert found["capabilities"]["forward"] == "c"

    async def check() -> None:
        async with service.async_client(timeout=300) as client:
            expected = await alone(client, model)
            assert len({tuple(said[0]) for said in expected}) == SEEDS
            assert all(len(ids) == TOKENS for said in expected for ids in said.values())
            first, _ = await amid(client, model)
            assert first == expected
            again, cached = await amid(client, model)
            assert again == expected
            assert sum(map(bool, cached)) >= SEEDS // 4
            await preempted(service, model)
            after, cut = await across_a_kill(service, client, model)
            assert cut > 0
            assert after == expected

    asyncio.run(check())
