"""The service against its engine: tokens per second of concurrent requests through HTTP.

    python -m benchmarks.service --model var/models/smollm2-135m-instruct

The engine alone and a whole installation (web, queue, worker on embedded servers, in a folder that
is deleted afterwards) run the same prompts by turns; the client shares the machine with them. The
table gives medians, `share` is the service's part of the engine's figure.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.bare_client import BareClient
from benchmarks.installation import DEMO_MODEL, Installation, installation
from workers.engine.config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.request import Request, SamplingParams

MODEL = "benchmarked"
Prompts = list[list[int]]


async def through_http(
    client: BareClient, prompts: Prompts, new_tokens: int, stream: bool
) -> float:
    """Tokens per second of one request per prompt, all at once."""
    fixed = {"model": MODEL, "max_tokens": new_tokens, "temperature": 0, "ignore_eos": True}
    if stream:
        fixed |= {"stream": True, "stream_options": {"include_usage": True}}
    bodies = [{"prompt": prompt, **fixed} for prompt in prompts]
    began = time.perf_counter()
    answers = await asyncio.gather(*(client.post("/v1/completions", body) for body in bodies))
    seconds = time.perf_counter() - began
    for answer in answers:
        assert answer.startswith(b"HTTP/1.1 200 "), answer[:1000]
        assert b'"completion_tokens":%d,' % new_tokens in answer, answer[-1000:]
        assert not stream or b"data: [DONE]" in answer
    return len(prompts) * new_tokens / seconds


def alone(engine: Engine, prompts: Prompts, new_tokens: int) -> float:
    """Tokens per second of the same requests given to the engine itself."""
    sampling = SamplingParams(max_tokens=new_tokens, temperature=0.0, ignore_eos=True)
    requests = [Request(str(i), (tuple(p),), sampling) for i, p in enumerate(prompts)]
    began = time.perf_counter()
    engine.generate(requests)
    return len(prompts) * new_tokens / (time.perf_counter() - began)


async def measure(
    args: argparse.Namespace, engine: Engine, service: Installation
) -> list[dict[str, Any]]:
    draw = random.Random(0)  # noqa: S311 - prompts, not secrets
    client = BareClient(service.port, service.key)
    rows = []
    for batch in map(int, args.concurrency.split(",")):
        prompts = [
            [draw.randrange(1000, 40000) for _ in range(args.prompt_tokens)] for _ in range(batch)
        ]
        figures: dict[str, list[float]] = {"engine": [], "answers": [], "streams": []}
        cpu: dict[str, dict[str, float]] = {"answers": {}, "streams": {}}
        for repeat in range(args.repeats + 1):  # the first warms up
            taken = {"engine": alone(engine, prompts, args.new_tokens)}
            for name in cpu:
                before = service.usage()
                streams = name == "streams"
                taken[name] = await through_http(client, prompts, args.new_tokens, streams)
                for process, usage in service.usage().items() if repeat else ():
                    spent = 1000 * (usage.cpu - before[process].cpu) / (batch * args.repeats)
                    cpu[name][process] = cpu[name].get(process, 0.0) + spent
            for name, figure in taken.items() if repeat else ():
                figures[name].append(figure)
        medians = {name: statistics.median(found) for name, found in figures.items()}
        share = {name: medians[name] / medians["engine"] for name in cpu}
        rows.append({"concurrency": batch, **medians, "share": share, "cpu_ms": cpu})
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
    path = json.dumps(str(Path(args.model).resolve()))
    models = f"[models.{MODEL}]\npath = {path}\nmax_model_len = 4096\n"
    with installation(models) as service:
        rows = uvloop.run(measure(args, engine, service))
    engine.stop()
    if args.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    sys.stdout.write("tokens/s: concurrency     engine    answers    streams   shares\n")
    for row in rows:
        share = row["share"]
        sys.stdout.write(
            f"{row['concurrency']:>21} {row['engine']:>10.0f} {row['answers']:>10.0f}"
            f" {row['streams']:>10.0f}   {share['answers']:.2f} {share['streams']:.2f}\n"
        )
        for name, by_process in row["cpu_ms"].items():
            spent = ", ".join(f"{process} {ms:.1f}" for process, ms in by_process.items())
            sys.stdout.write(f"    ms of CPU per request, {name}: {spent}\n")


if __name__ == "__main__":
    main()
