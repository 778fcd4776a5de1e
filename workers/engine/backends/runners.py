"""Chooses what runs a step: the paged forward on a CPU or a GPU, or the general way."""

from workers.engine.backends.cpu.runner import ModelRunner
from workers.engine.backends.cuda.runner import CudaModelRunner
from workers.engine.backends.fallback.model import GeneralModel
from workers.engine.backends.fallback.runner import GeneralRunner
from workers.engine.checkpoints.loader import LoadedModel
from workers.engine.config import EngineConfig
from workers.engine.core.attention_backend import CudaBackend

Runner = ModelRunner | CudaModelRunner | GeneralRunner


def make_runner(loaded: LoadedModel, config: EngineConfig) -> Runner:
    if isinstance(loaded.model, GeneralModel):
        return GeneralRunner(loaded, config)
    if isinstance(loaded.backend, CudaBackend):
        return CudaModelRunner(loaded, config)
    return ModelRunner(loaded, config)
