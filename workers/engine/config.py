"""Engine settings, under the names that vLLM gave them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

DEVICES = re.compile(r"auto|cpu|cuda(:\d+)?")
ROUNDED_DTYPES = ("int8", "int4")
DTYPES = ("auto", "float32", "bfloat16", "float16", *ROUNDED_DTYPES)
PENALTY_SCOPES = ("output", "all")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of one engine. None means: derive the value from the model or the machine.

    Raises ValueError for a value out of range.
    """

    device: str = "auto"
    """``auto`` (the GPU if there is one), ``cpu``, ``cuda`` or ``cuda:N``."""
    dtype: str = "auto"
    """The type of weights and activations; ``auto`` is the type of the model's files. On CPUs only,
    ``int8`` rounds the weights of linear layers to 8 bits, and ``int4`` all of them except the
    output layer's to 4 bits; the rest stays in bfloat16."""
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 512
    """Bounds the tokens of one step."""
    step_ms: float = 80.0
    """Milliseconds that a step takes at most while somebody reads tokens as they come, as far as
    the sizes of prompts' chunks can make it so."""
    block_size: int = 16
    """On a GPU it is rounded up to a size that the attention kernel takes."""
    kv_cache_bytes: int | None = None
    tensor_parallel_size: int = 1
    """How many processes compute the model, each with a part of its weights: on a GPU of its own,
    or all on the CPU."""
    rank_timeout: float = 120.0
    """Seconds that one of them waits for the others in a step before it ends."""
    gpu_memory_utilization: float = 0.9
    """The share of a GPU's memory that the engine may use."""
    enforce_eager: bool = False
    """On a GPU, run without CUDA graphs and without fused kernels."""
    async_scheduling: bool = True
    """On a GPU, launch a step before the tokens of the previous one are known, if it depends on
    nothing else."""
    num_threads: int | None = None
    """A fixed number of threads. By default the engine uses all cores, or one fewer while other
    processes need it."""
    grammar_threads: int = 1
    adapters: Mapping[str, Path] = field(default_factory=dict)
    """PEFT folders of LoRA adapters, by the name that requests use."""
    adapter_store: Path | None = None
    """The folder with the files of adapters that are registered while the engine runs; None for no
    such adapters."""
    max_adapter_bytes: int = 2 * 1024**3
    """Memory for those adapters. Beyond it, the least recently used ones are freed."""
    stop_token_ids: tuple[int, ...] = ()
    """Ids that end every text, in addition to the ones that the model's files name."""
    logit_processors: Mapping[str, str] = field(default_factory=dict)
    """The names that requests may give as ``custom_logit_processor``, each with the
    ``module:attribute`` that it stands for."""
    jump_forward: bool = True
    """Append the tokens that a grammar forces without a step for each."""
    speculation: bool = True
    """Draft tokens, and keep the ones that sampling chooses. It applies where the number of tokens
    in a step does not change the samples: in the C forward, and to greedy rows in float32."""
    enable_prefix_caching: bool = True
    repetition_penalty_scope: str = "output"
    """Which tokens the repetition penalty counts: ``output`` as in SGLang, or ``all`` (the prompt
    too) as in vLLM."""
    max_waiting: int = 4096
    """Bounds the sequences that wait. A waiting sequence costs the memory of its token ids, about
    16 KiB for each 2,000 tokens."""

    @property
    def is_rounded(self) -> bool:
        """Whether the weights of linear layers are rounded to whole numbers."""
        return self.dtype in ROUNDED_DTYPES

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
        self._check_ranks()
        for name in ("max_num_seqs", "step_ms", "block_size", "grammar_threads", "max_waiting"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("max_model_len", "kv_cache_bytes", "num_threads"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
        if self.max_num_batched_tokens <= self.max_num_seqs:
            # Every running sequence may decode in each step; one more token keeps prefill going.
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must exceed "
                f"max_num_seqs ({self.max_num_seqs})"
            )

    def _check_ranks(self) -> None:
        size = self.tensor_parallel_size
        if size < 1:
            raise ValueError(f"tensor_parallel_size must be at least 1, not {size}")
        if size == 1:
            return
        if self.is_rounded:
            raise ValueError(
                f"dtype {self.dtype} needs the C forward, which runs in one process: with "
                f'tensor_parallel_size = {size}, set dtype = "bfloat16"'
            )
        if self.adapters:
            raise ValueError(
                f"adapters ({', '.join(self.adapters)}) need the whole model in one process: "
                f"remove them, or set tensor_parallel_size = 1 instead of {size}"
            )
