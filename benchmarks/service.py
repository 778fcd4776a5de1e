"""The service against its engine: tokens per second of concurrent requests through HTTP.

    python -m benchmarks.service --model var/models/smollm2-135m-instruct

The engine alone and a whole installation (web, queue, worker on embedded servers, in a folder that
is deleted afterwards) run the same prompts by turns; the client shares the machine with them. The
table gives medians, `share` is the service's part of the engine's figure.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from workers.engine.config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.request import Request, SamplingParams

ROOT = Path(__file__).resolve().parent.parent
DEMO_MODEL = ROOT / "var" / "models" / "smollm2-135m-instruct"
MODEL = "benchmarked"
Prompts = list[list[int]]


@contextmanager
def installation(model: Path) -> Iterator[httpx.AsyncClient]:
    """`manage.py up` on a free port; a client with a key to it."""
    with tempfile.TemporaryDirectory(prefix="quire-bench-") as home, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        models = Path(home) / "models.toml"
        models.write_text(f'[models.{MODEL}]\npath = "{model.resolve()}"\nmax_model_len = 4096\n')
        environment = {
            **{k: v for k, v in os.environ.items() if k not in ("DATABASE_URL", "REDIS_URL")},
            "QUIRE_HOME": home,
            "QUIRE_MODELS": str(models),
            "PORT": str(port),
        }
        manage = [sys.executable, "manage.py"]
        up = subprocess.Popen([*manage, "up"], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_ready(url, up)
            key = subprocess.check_output(
                [*manage, "create_api_key", "benchmark"], cwd=ROOT, env=environment, text=True
            ).strip()
            yield httpx.AsyncClient(
                base_url=url,
                headers={"Authorization": f"Bearer {key}"},
                limits=httpx.Limits(max_connections=None),
                timeout=600,
            )
        finally:
            up.send_signal(signal.SIGTERM)
            up.wait(60)


def _wait_ready(url: str, up: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and up.poll() is None:
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise SystemExit("the service did not become ready")


async def through_http(
    client: httpx.AsyncClient, prompts: Prompts, new_tokens: int, stream: bool
) -> float:
    """Tokens per second of one request per prompt, all at once."""

    async def ask(prompt: list[int]) -> None:
        body = {
            "model": MODEL, "prompt": prompt, "max_tokens": new_tokens, "temperature": 0,
            "ignore_eos": True, "stream": stream,
        }  # fmt: skip
        answer = await client.post("/v1/completions", json=body)
        answer.raise_for_status()
        if stream:
            assert answer.text.rstrip().endswith("data: [DONE]")
        else:
            assert answer.json()["usage"]["completion_tokens"] == new_tokens

    began = time.perf_counter()
    await asyncio.gather(*map(ask, prompts))
    return len(prompts) * new_tokens / (time.perf_counter() - began)


def alone(engine: Engine, prompts: Prompts, new_tokens: int) -> float:
    """Tokens per second of the same requests given to the engine itself."""
    sampling = SamplingParams(max_tokens=new_tokens, temperature=0.0, ignore_eos=True)
    requests = [Request(str(i), (tuple(p),), sampling) for i, p in enumerate(prompts)]
    began = time.perf_counter()
    engine.generate(requests)
    return len(prompts) * new_tokens / (time.perf_counter() - began)


async def measure(args: argparse.Namespace, engine: Engine) -> list[dict[str, Any]]:
    draw = random.Random(0)  # noqa: S311 - prompts, not secrets
    rows = []
    with installation(Path(args.model)) as service:
        for batch in map(int, args.concurrency.split(",")):
            prompts = [
                [draw.randrange(1000, 40000) for _ in range(args.prompt_tokens)]
                for _ in range(batch)
            ]
            figures: dict[str, list[float]] = {"engine": [], "answers": [], "streams": []}
            for repeat in range(args.repeats + 1):  # the first warms up
                taken = {
                    "engine": alone(engine, prompts, args.new_tokens),
                    "answers": await through_http(service, prompts, args.new_tokens, False),
                    "streams": await through_http(service, prompts, args.new_tokens, True),
                }
                for name, figure in taken.items() if repeat else ():
                    figures[name].append(figure)
            medians = {name: statistics.median(found) for name, found in figures.items()}
            share = medians["answers"] / medians["engine"]
            rows.append({"concurrency": batch, **medians, "share": share})
        await service.aclose()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=str(DEMO_MODEL), help="a model folder")
    parser.add_argument("--concurrency", default="1,32", help="requests at once, by commas")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    args = parser.parse_args()
    engine = Engine.from_pretrained(args.model, EngineConfig(max_model_len=4096))
    rows = asyncio.run(measure(args, engine))
    engine.stop()
    if args.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    sys.stdout.write("tokens/s: concurrency     engine    answers    streams   share\n")
    for row in rows:
        sys.stdout.write(
            f"{row['concurrency']:>21} {row['engine']:>10.0f} {row['answers']:>10.0f}"
            f" {row['streams']:>10.0f} {row['share']:>7.2f}\n"
        )


if __name__ == "__main__":
    main()
