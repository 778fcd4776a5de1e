"""llama.cpp through llama-cpp-python, one prompt after the other: its Python interface has no
batches. The model is the one GGUF file in the folder."""

import json
from pathlib import Path
from typing import Any

from benchmarks.contenders.protocol import Job, Runner, serve


def load(path: str) -> tuple[Runner, dict[str, Any]]:
    import llama_cpp

    [file] = Path(path).glob("*.gguf")
    llm = llama_cpp.Llama(model_path=str(file), n_ctx=2048, verbose=False)
    end = llm.token_eos()

    def run(job: Job) -> list[tuple[list[int], str]]:
        if job.regex is not None:
            raise NotImplementedError("llama.cpp takes no regular expressions")
        if job.schema is None:
            return [(_exact(prompt, job.max_tokens), "") for prompt in job.prompts]
        grammar = llama_cpp.LlamaGrammar.from_json_schema(json.dumps(json.loads(job.schema)))
        return [_document(prompt, job, grammar) for prompt in job.prompts]

    def _exact(prompt: list[int], count: int) -> list[int]:
        generated = llm.generate(prompt, temp=0.0)
        return [next(generated) for _ in range(count)]

    def _document(prompt: list[int], job: Job, grammar: Any) -> tuple[list[int], str]:
        ids: list[int] = []
        for token in llm.generate(prompt, temp=job.temperature, grammar=grammar):
            if token == end or len(ids) == job.max_tokens:
                break
            ids.append(token)
        return ids, llm.detokenize(ids).decode("utf-8", "replace")

    return run, {"llama-cpp-python": llama_cpp.__version__, "file": file.name}


if __name__ == "__main__":
    serve(load)
