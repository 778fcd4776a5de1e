"""llama.cpp through the bindings of llama-cpp-python: all sequences in one batch, greedily. Tokens
with which all prompts begin are computed once."""

import ctypes
import os
from itertools import takewhile
from typing import Any

import llama_cpp
import numpy as np

from benchmarks.peers.protocol import Job, Runner, serve

_CONTEXT = 20480
"""Tokens of all sequences together."""
_BATCH = 512
_SEQUENCES = 64
_Entry = tuple[int, int, int, bool]
"""A token, its position and sequence, and whether the logits after it are needed."""


class _Model:
    def __init__(self, path: str) -> None:
        llama_cpp.llama_backend_init()
        defaults = llama_cpp.llama_model_default_params()
        defaults.use_extra_bufts = os.environ.get("LLAMA_CPP_REPACKS", "1") == "1"
        model = llama_cpp.llama_model_load_from_file(path.encode(), defaults)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = _CONTEXT, _BATCH, _BATCH
        params.n_seq_max, params.kv_unified = _SEQUENCES, True
        params.n_threads = params.n_threads_batch = _threads()
        self._context = llama_cpp.llama_init_from_model(model, params)
        self._size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self._batch = llama_cpp.llama_batch_init(_BATCH, 0, 1)

    def run(self, job: Job) -> list[tuple[list[int], str]]:
        prompts = job.prompts
        shared = self._share(prompts)
        latest = self._decode(
            [
                (token, i, sequence, i == len(prompt) - 1)
                for sequence, prompt in enumerate(prompts)
                for i, token in enumerate(prompt)
                if i >= shared
            ]
        )
        texts = [[token] for token in latest]
        for step in range(job.max_tokens - 1):
            latest = self._decode(
                [(token, len(prompts[i]) + step, i, True) for i, token in enumerate(latest)]
            )
            for text, token in zip(texts, latest, strict=True):
                text.append(token)
        return [(text, "") for text in texts]

    def _share(self, prompts: list[list[int]]) -> int:
        """Forget earlier sequences, compute the tokens with which all prompts begin, and return
        their number. At least the last token of each prompt remains."""
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_clear(memory, True)
        if len(prompts) == 1:
            return 0
        columns = zip(*(prompt[:-1] for prompt in prompts), strict=False)
        shared = [column[0] for column in takewhile(lambda c: len(set(c)) == 1, columns)]
        self._decode([(token, i, 0, False) for i, token in enumerate(shared)])
        for sequence in range(1, len(prompts)):
            llama_cpp.llama_memory_seq_cp(memory, 0, sequence, -1, -1)
        return len(shared)

    def _decode(self, entries: list[_Entry]) -> list[int]:
        """Return the most likely next token of each entry that needs one."""
        best: list[int] = []
        for begin in range(0, len(entries), _BATCH):
            best += self._decode_batch(entries[begin : begin + _BATCH])
        return best

    def _decode_batch(self, entries: list[_Entry]) -> list[int]:
        batch = self._batch
        batch.n_tokens = len(entries)
        for i, (token, position, sequence, wanted) in enumerate(entries):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        if llama_cpp.llama_decode(self._context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        return [self._best(i) for i, (*_, wanted) in enumerate(entries) if wanted]

    def _best(self, i: int) -> int:
        row = llama_cpp.llama_get_logits_ith(self._context, i)
        pointer = ctypes.cast(row, ctypes.POINTER(ctypes.c_float))
        return int(np.argmax(np.ctypeslib.as_array(pointer, (self._size,))))


def _threads() -> int:
    """As many as torch uses in the other contenders."""
    return int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)


def load(path: str) -> tuple[Runner, dict[str, Any]]:
    return _Model(path).run, {"llama_cpp": llama_cpp.__version__}


if __name__ == "__main__":
    serve(load)
