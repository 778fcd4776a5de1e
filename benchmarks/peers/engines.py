"""The engines that are compared: one record for each."""

import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.checkpoints import Format, Gguf, OpenVino
from benchmarks.peers.environments import program
from benchmarks.peers.process import Contender


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine with its settings, as a module of ``benchmarks.peers``."""

    name: str
    module: str
    options: tuple[str, ...] = ()
    """Passed to the module after the model."""
    environment: str = ""
    """The virtual environment that it runs in. Empty: Quire's own."""
    model_format: Format | None = None
    """None: the checkpoint as it is."""
    can_constrain: bool = False
    """Whether it generates under a regular expression and under a JSON Schema."""

    def missing_environments(self, folder: Path) -> list[str]:
        """Return the names of the environments that ``folder`` lacks, for the conversion of its
        model too."""
        exporter = self.model_format.environment if self.model_format else ""
        needed = [name for name in (self.environment, exporter) if name]
        return [name for name in needed if not program(folder, name).exists()]

    def contender(self, model: Path, folder: Path) -> Contender:
        """Convert the model unless that was done before. Raises CalledProcessError."""
        python = str(program(folder, self.environment)) if self.environment else sys.executable
        path = self.model_format.convert(model, folder) if self.model_format else model
        return Contender(self.name, f"benchmarks.peers.{self.module}", python, path, self.options)


OURS = "quire"
"""Quire without drafts. A small model soon repeats itself after random prompts, so that drafts are
accepted far more often than in real texts; ``quire-drafts`` shows by how much."""
ENGINES = (
    Engine(OURS, "quire", ("bfloat16", "no-drafts", "touched"), can_constrain=True),
    Engine("quire-int8", "quire", ("int8", "no-drafts", "touched"), can_constrain=True),
    Engine("quire-drafts", "quire", ("bfloat16", "drafts", "touched"), can_constrain=True),
    Engine("vllm-cpu", "vllm_cpu", ("bfloat16",), "vllm-cpu", can_constrain=True),
    Engine("openvino", "openvino", (), "openvino", OpenVino("fp16"), can_constrain=True),
    Engine("openvino-int8", "openvino", (), "openvino", OpenVino("int8"), can_constrain=True),
    Engine("llama.cpp", "llama_cpp", (), "llama-cpp", Gguf("BF16")),
    Engine("generate", "transformers_generate", ("bfloat16",)),
    Engine("continuous", "transformers_continuous", ("bfloat16",)),
)
