"""Mixed load on an installation whose engine is a script, and a record of the responses.

The script's tokens are known beforehand, so that every answer can be judged alone: it is whole and
right, or it is an error that its client may be given while something is being killed.
"""

import asyncio
import contextlib
import json
import random
from collections import Counter
from dataclasses import dataclass, field

import httpx

from benchmarks.service.scripted_worker import token
from tests.acceptance.service import MODEL, Installation
from tests.running import until

TOKENS = 30
EXCUSES = frozenset(
    {"queue_unavailable", "server_shutting_down", "model_loading", "server_overloaded",
     "database_unavailable"}
)  # fmt: skip
"""Errors after which a client tries again: nothing was accepted, or a stream broke."""


def tokens(seed: int, count: int = TOKENS, choice: int = 0) -> list[int]:
    """Return the tokens that the scripted engine generates."""
    return [token(seed, choice, position) for position in range(count)]


@dataclass
class Ledger:
    """What clients saw."""

    accepted: dict[str, int] = field(default_factory=dict)
    """Seeds of background jobs by the address to poll."""
    outcomes: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def judge(self, kind: str, right: bool, what: object) -> None:
        self.outcomes[kind] += 1
        if not right:
            self.violations.append(f"{kind}: {what}")


class Traffic:
    """Clients that each send one request after another until they are stopped."""

    def __init__(
        self, service: Installation, clients: int, seed: int, key: str = "", url: str = ""
    ) -> None:
        self._key, self._url = key or service.key, url or service.url
        self._clients = clients
        self._random = random.Random(seed)  # noqa: S311 - repeatable, not secret
        self._stopping = asyncio.Event()
        self.ledger = Ledger()

    async def run(self) -> Ledger:
        headers = {"Authorization": f"Bearer {self._key}"}
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with httpx.AsyncClient(
            base_url=self._url, headers=headers, timeout=120, limits=limits
        ) as http:
            await asyncio.gather(*(self._client(http) for _ in range(self._clients)))
        return self.ledger

    async def until_more(self, answers: int) -> None:
        """Wait for this many more answers of any kind."""
        enough = self.ledger.outcomes.total() + answers
        await until(lambda: self.ledger.outcomes.total() >= enough)

    def stop(self) -> None:
        self._stopping.set()

    async def _client(self, http: httpx.AsyncClient) -> None:
        kinds = (self._stream, self._answer, self._background)
        while not self._stopping.is_set():
            seed = self._random.randrange(1 << 30)
            body = {
                "model": MODEL, "prompt": [7], "max_tokens": TOKENS, "seed": seed,
                "return_token_ids": True,
            }  # fmt: skip
            try:
                await self._random.choice(kinds)(http, body, seed)
            except httpx.HTTPError as error:  # its web process was killed
                self.ledger.outcomes[type(error).__name__] += 1
                await asyncio.sleep(0.2)

    async def _stream(self, http: httpx.AsyncClient, body: dict, seed: int) -> None:
        numbers: list[int] = []
        ids: list[int] = []
        code = None
        async with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
            if answer.status_code != 200:
                await answer.aread()
                return await self._refused("stream", answer)
            with contextlib.suppress(httpx.HTTPError):  # cut: what came must be right all the same
                async for line in answer.aiter_lines():
                    data = line.removeprefix("data: ")
                    if data == line or data == "[DONE]":
                        continue
                    chunk = json.loads(data)
                    if "error" in chunk:
                        code = chunk["error"]["code"]
                        continue
                    numbers.append(chunk["sequence_number"])
                    ids += chunk["choices"][0]["token_ids"]
        gapless = numbers == list(range(1, len(numbers) + 1)) and ids == tokens(seed)[: len(ids)]
        self.ledger.judge("stream", gapless and (code is None or code in EXCUSES), (code, numbers))
        if len(ids) == TOKENS:
            self.ledger.outcomes["whole streams"] += 1
        return None

    async def _answer(self, http: httpx.AsyncClient, body: dict, seed: int) -> None:
        answer = await http.post("/v1/completions", json=body)
        if answer.status_code != 200:
            return await self._refused("answer", answer)
        right = answer.json()["choices"][0]["token_ids"] == tokens(seed)
        return self.ledger.judge("answer", right, answer.text)

    async def _background(self, http: httpx.AsyncClient, body: dict, seed: int) -> None:
        answer = await http.post("/v1/completions", json={**body, "background": True})
        if answer.status_code != 202:
            return await self._refused("background", answer)
        self.ledger.accepted[answer.headers["Location"]] = seed
        return self.ledger.judge("background", True, "")

    async def _refused(self, kind: str, answer: httpx.Response) -> None:
        code = answer.json()["error"]["code"]
        comes_again = "retry-after" in answer.headers
        right = answer.status_code == 503 and code in EXCUSES and comes_again
        self.ledger.judge(f"{kind}: {code}", right, (answer.status_code, answer.text))
        await asyncio.sleep(0.2)
