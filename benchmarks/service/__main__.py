"""The service against its engine: tokens per second of concurrent requests through HTTP.

    python -m benchmarks.service --model var/models/smollm2-135m-instruct

The engine alone and a whole installation (web, queue, worker on embedded servers, in a folder that
is deleted afterwards) run the same prompts in turn; the client shares the machine with them. The
table gives medians; `share` is the service's part of the engine's figure.
"""

import argparse
import asyncio
import statistics
import time
from pathlib import Path

import uvloop

from benchmarks import command_line
from benchmarks.engine.turns import Prompts, exactly, generate, random_prompts
from benchmarks.ratios import write_run
from benchmarks.service.installation import DEMO_MODEL, MODEL, Installation, installation
from benchmarks.web.bare_client import BareClient
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.engine import Engine


async def through_http(
    client: BareClient, prompts: Prompts, new_tokens: int, stream: bool
) -> float:
    """Return tokens per second of one request per prompt, all sent at once."""
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
    """Return tokens per second of the same requests passed directly to the engine."""
    began = time.perf_counter()
    generate(engine, prompts, exactly(new_tokens))
    return len(prompts) * new_tokens / (time.perf_counter() - began)


async def measure(
    args: argparse.Namespace, engine: Engine, service: Installation
) -> dict[str, float]:
    """Print a row for each number of concurrent requests. Returns the shares."""
    found: dict[str, float] = {}
    client = BareClient(service.port, service.key)
    print("tokens/s: concurrency     engine    answers    streams   shares")
    for batch in args.concurrency:
        prompts = random_prompts(40_000, batch, args.prompt_tokens, batch)
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
        rates = {name: statistics.median(turns) for name, turns in figures.items()}
        columns = " ".join(f"{rate:>10.0f}" for rate in rates.values())
        share = {name: rates[name] / rates["engine"] for name in cpu}
        found |= {f"{batch} at once: {name} / engine": rate for name, rate in share.items()}
        shares = " ".join(f"{rate:.2f}" for rate in share.values())
        print(f"{batch:>21} {columns}   {shares}")
        for name, by_process in cpu.items():
            costs = ", ".join(f"{process} {ms:.1f}" for process, ms in by_process.items())
            print(f"    ms of CPU per request, {name}: {costs}", flush=True)
    return found


def main() -> None:
    parser = command_line.parser(
        __doc__, model=DEMO_MODEL, concurrency=[1, 32], prompt_tokens=64, new_tokens=64, repeats=3
    )
    parser.add_argument("--json", type=Path, help="also write the shares to this file")
    args = parser.parse_args()
    engine = build_engine(args.model, EngineConfig(max_model_len=4096))
    entry: dict[str, int | str] = {"path": str(args.model.resolve()), "max_model_len": 4096}
    with installation(entry) as service:
        shares = uvloop.run(measure(args, engine, service))
    engine.stop()
    if args.json is not None:
        write_run(args.json, shares)


if __name__ == "__main__":
    main()
