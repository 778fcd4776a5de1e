"""Engine settings, under the names that vLLM gave them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DEVICES = re.compile(r"auto|cpu|cuda(:\d+)?")
DTYPES = ("auto", "float32", "bfloat16", "float16", "int8")
PENALTY_SCOPES = ("output", "all")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one engine; ``None`` means "derive it from the model or the machine".

    ``max_num_batched_tokens`` bounds the tokens of one step, so it bounds how long a prompt's
    chunk can hold up the sequences that are decoding beside it. ``num_threads`` fixes the number
    of threads; without it the engine uses all cores, or one less while neighbours need it.
    ``dtype`` is the type of weights and activations, ``auto`` that of the model's files; ``int8``
    rounds the weights of linear layers to 8 bits, on CPUs only, and leaves the rest in bfloat16.
    ``device`` is ``auto`` (the GPU if there is one), ``cpu``, ``cuda`` or ``cuda:N``. On a GPU,
    ``block_size`` is rounded up to what its attention kernel takes, the KV cache leaves free what
    exceeds ``gpu_memory_utilization``, decoding runs from captured graphs unless
    ``enforce_eager``, and with ``async_scheduling`` a step is launched before the tokens of the one
    before it are known, where it depends on nothing else.
    ``adapters`` are the PEFT folders of LoRA adapters, by the name that requests use.
    ``stop_token_ids`` end every text, beside those that the model's own files name.
    ``logit_processors`` are those that requests may name, as ``module:attribute``.
    ``jump_forward`` appends the tokens that a grammar forces without a step for each.
    ``repetition_penalty_scope`` says which tokens that penalty is for: ``output``, as in SGLang,
    or ``all``, the prompt's too, as in vLLM.
    ``max_waiting`` bounds the sequences that wait beside the running ones; their token ids are
    what a queue costs, about 16 KiB for each 2,000 tokens.
    """

    device: str = "auto"
    dtype: str = "auto"
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    block_size: int = 16
    kv_cache_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    enforce_eager: bool = False
    async_scheduling: bool = True
    num_threads: int | None = None
    grammar_threads: int = 1
    adapters: Mapping[str, Path] = field(default_factory=dict)
    stop_token_ids: tuple[int, ...] = ()
    logit_processors: Mapping[str, str] = field(default_factory=dict)
    jump_forward: bool = True
    enable_prefix_caching: bool = True
    repetition_penalty_scope: str = "output"
    max_waiting: int = 4096

    def __post_init__(self) -> None:
        if not DEVICES.fullmatch(self.device):
            raise ValueError(f"device must be auto, cpu, cuda or cuda:N, not {self.device!r}")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(
                f"gpu_memory_utilization must be in (0, 1], not {self.gpu_memory_utilization}"
            )
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, not {self.dtype!r}")
        if self.repetition_penalty_scope not in PENALTY_SCOPES:
            raise ValueError(
                f"repetition_penalty_scope must be one of {', '.join(PENALTY_SCOPES)}, not "
                f"{self.repetition_penalty_scope!r}"
            )
        for name in ("max_num_seqs", "block_size", "grammar_threads", "max_waiting"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("max_model_len", "kv_cache_bytes", "num_threads"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.max_num_batched_tokens <= self.max_num_seqs:
            # Every running sequence may decode each step, and one more token lets prefill go on.
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must exceed "
                f"max_num_seqs ({self.max_num_seqs})"
            )
