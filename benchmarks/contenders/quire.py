"""Quire's engine, without the service around it."""

import json
from typing import Any

import torch

from benchmarks.contenders.protocol import Job, Runner, serve
from workers.engine.config import EngineConfig
from workers.engine.engine import Engine
from workers.engine.request import Request, SamplingParams


def load(path: str) -> tuple[Runner, dict[str, Any]]:
    engine = Engine.from_pretrained(path, EngineConfig(dtype="bfloat16"))

    def run(job: Job) -> list[tuple[list[int], str]]:
        exact = job.schema is None
        requests = [
            Request(
                str(i),
                (tuple(prompt),),
                SamplingParams(
                    max_tokens=job.max_tokens,
                    min_tokens=job.max_tokens if exact else 0,
                    ignore_eos=exact,
                    temperature=job.temperature,
                    seed=i,
                ),
                _grammar(job),
            )
            for i, prompt in enumerate(job.prompts)
        ]
        outputs = []
        for completion in engine.generate(requests):
            if completion.error is not None:
                raise completion.error
            outputs.append((completion.choices[0].token_ids, completion.choices[0].text))
        return outputs

    return run, {"torch": torch.__version__}


def _grammar(job: Job) -> str | None:
    if job.regex is not None:
        return f"start: /{job.regex}/"
    if job.schema is None:
        return None
    schema = {**json.loads(job.schema), "x-guidance": {"whitespace_flexible": False}}
    return json.dumps({"grammars": [{"json_schema": schema}]})


if __name__ == "__main__":
    serve(load)
