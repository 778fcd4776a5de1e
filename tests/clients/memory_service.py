"""A service that answers the client from memory."""

import json
import re

import httpx

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
        self.fields: dict[str, object] = {}
        self.queries: list[str] = []

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
        if path.endswith("/export"):
            self.queries.append(str(request.url.query, "ascii"))
            return self.read(request)
        if path == "/batches" and request.method == "GET":
            self.queries.append(str(request.url.query, "ascii"))
            return httpx.Response(200, json={"data": [self.batch]})
        if path == "/batches":
            self.created.append(request)
            self.bodies.append(json.loads(request.content))
        if path.startswith("/batches"):
            return httpx.Response(200, json=self.batch)
        if path.startswith("/models"):
            prices = {"prompt": 1.0, "cached_prompt": 0.1, "completion": 4.0}
            return httpx.Response(200, json={"prices_per_million_tokens": prices})
        return httpx.Response(200, json={"id": "upload_1" if path == "/uploads" else "file-1"})

    @property
    def batch(self) -> dict[str, object]:
        return {
            "id": "batch_1",
            "status": self.status,
            "request_counts": {"total": 2, "completed": 1, "failed": 1},
            "model": "m",
            "metadata": {"name": "night"},
            "output_file_id": "file-2",
            "error_file_id": None,
            "errors": None,
            "usage": {
                "input_tokens": 3_000_000,
                "output_tokens": 500_000,
                "input_tokens_details": {"cached_tokens": 1_000_000},
            },
            **self.fields,
        }

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
