"""transformers' continuous batching: ``generate_batch``."""

from typing import Any

import torch
import transformers

from benchmarks.peers.protocol import Job, Runner, serve


def load(path: str, dtype: str = "bfloat16") -> tuple[Runner, dict[str, Any]]:
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=dtype, attn_implementation="sdpa"
    )

    def run(job: Job) -> list[tuple[list[int], str]]:
        make_config: Any = transformers.GenerationConfig
        config = make_config(
            max_new_tokens=job.max_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        results = model.generate_batch(
            inputs=job.prompts, generation_config=config, progress_bar=False
        )
        return [(result.generated_tokens, "") for result in results.values()]

    return run, {"transformers": transformers.__version__, "torch": torch.__version__}


if __name__ == "__main__":
    serve(load)
