"""``transformers.generate`` as its documentation shows it."""

from typing import Any

import torch
import transformers

from benchmarks.peers.protocol import Job, Runner, serve


def load(path: str, dtype: str = "bfloat16") -> tuple[Runner, dict[str, Any]]:
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=dtype)

    @torch.inference_mode()
    def run(job: Job) -> list[tuple[list[int], str]]:
        ids = torch.tensor(job.prompts)
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=job.max_tokens,
            min_new_tokens=job.max_tokens,
        )
        return [(row, "") for row in output[:, ids.shape[1] :].tolist()]

    return run, {"transformers": transformers.__version__, "torch": torch.__version__}


if __name__ == "__main__":
    serve(load)
