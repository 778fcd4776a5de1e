"""OpenVINO GenAI's continuous batching on the CPU, with its own choice of the types that it
computes and keeps keys and values in. Reads a folder that optimum-intel wrote."""

from typing import Any

import numpy as np
import openvino
import openvino_genai as genai

from benchmarks.peers.protocol import Job, Runner, serve

_CACHE_GB = 3
_SEQUENCES = 64
_TOKENS = 512
"""Tokens of a step, as many as Quire computes."""


def load(path: str) -> tuple[Runner, dict[str, Any]]:
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = _CACHE_GB
    scheduler.max_num_seqs = _SEQUENCES
    scheduler.max_num_batched_tokens = _TOKENS
    scheduler.enable_prefix_caching = True
    pipeline = genai.ContinuousBatchingPipeline(path, scheduler, "CPU")
    tokenizer = pipeline.get_tokenizer()

    def run(job: Job) -> list[tuple[list[int], str]]:
        inputs = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in job.prompts]
        results = pipeline.generate(inputs, [_settings(job, i) for i in range(len(inputs))])
        ids = [list(result.m_generation_ids[0]) for result in results]
        return [(one, tokenizer.decode(one) if job.schema else "") for one in ids]

    core = openvino.Core()
    types = {
        name: core.get_property("CPU", name).get_type_name()
        for name in ("INFERENCE_PRECISION_HINT", "KV_CACHE_PRECISION")
    }
    return run, {"openvino_genai": genai.__version__, **types}


def _settings(job: Job, seed: int) -> Any:
    settings = genai.GenerationConfig(max_new_tokens=job.max_tokens)
    settings.ignore_eos = job.schema is None
    if job.temperature:
        settings.do_sample, settings.temperature = True, job.temperature
        settings.rng_seed = seed
    if job.regex is not None or job.schema is not None:
        settings.structured_output_config = genai.StructuredOutputConfig(
            **({"regex": job.regex} if job.regex else {"json_schema": job.schema})
        )
    return settings


if __name__ == "__main__":
    serve(load)
