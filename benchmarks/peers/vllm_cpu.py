"""vLLM on the CPU, in one process, with the settings that were fastest for documents: the guidance
backend, and at most one space between the parts of JSON. Intel's OpenMP and tcmalloc are preloaded
where they are installed, as vLLM's documentation advises."""

import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.protocol import Job, Runner, serve

os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

_SYSTEM = Path("/usr/lib")


def load(path: str, dtype: str = "bfloat16") -> tuple[Runner, dict[str, Any]]:
    import vllm
    from vllm.sampling_params import StructuredOutputsParams

    llm = vllm.LLM(
        model=path,
        dtype=dtype,
        max_model_len=8192,
        max_num_seqs=64,
        structured_outputs_config={"backend": "guidance", "disable_any_whitespace": True},
    )

    def run(job: Job) -> list[tuple[list[int], str]]:
        constraint = None
        if job.regex is not None or job.schema is not None:
            constraint = StructuredOutputsParams(regex=job.regex, json=job.schema)
        exact = job.schema is None
        params = [
            vllm.SamplingParams(
                max_tokens=job.max_tokens,
                min_tokens=job.max_tokens if exact else 0,
                ignore_eos=exact,
                temperature=job.temperature,
                seed=i if job.temperature else None,
                structured_outputs=constraint,
            )
            for i in range(len(job.prompts))
        ]
        prompts = [{"prompt_token_ids": prompt} for prompt in job.prompts]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return [(list(o.outputs[0].token_ids), o.outputs[0].text) for o in outputs]

    return run, {"vllm": vllm.__version__, "preloaded": os.environ.get("LD_PRELOAD", "")}


def preload() -> None:
    """Start this program again with the libraries, unless the environment already names some."""
    libraries = [
        *Path(sys.prefix).glob("lib/libiomp5.so"),
        *_SYSTEM.glob("*/libtcmalloc_minimal.so.4"),
    ]
    if libraries and "LD_PRELOAD" not in os.environ:
        os.environ["LD_PRELOAD"] = ":".join(map(str, libraries))
        command = [sys.executable, "-m", __spec__.name, *sys.argv[1:]]
        os.execv(sys.executable, command)  # noqa: S606 - no shell is what is meant


if __name__ == "__main__":
    preload()
    serve(load)
