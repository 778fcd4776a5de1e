"""Chooses what runs a step: the paged forward on a CPU or a GPU, or the general way."""

from workers.engine.config import EngineConfig
from workers.engine.cuda.model_runner import CudaModelRunner
from workers.engine.general.model import GeneralModel
from workers.engine.general.runner import GeneralRunner
from workers.engine.loading.loader import LoadedModel
from workers.engine.model.attention_backend import CudaBackend
from workers.engine.model.runner import ModelRunner

Runner = ModelRunner | CudaModelRunner | GeneralRunner


def make_runner(loaded: LoadedModel, config: EngineConfig) -> Runner:
    if isinstance(loaded.model, GeneralModel):
        return GeneralRunner(loaded, config)
    if isinstance(loaded.backend, CudaBackend):
        return CudaModelRunner(loaded, config)
    return ModelRunner(loaded, config)
