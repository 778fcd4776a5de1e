"""A quantized checkpoint is split as an ordinary one."""

from pathlib import Path

import pytest
from gguf import GGMLQuantizationType

from completions.contract.sampling import SamplingParams
from tests.workers.engine.backends.parallel.families import FAMILIES
from tests.workers.engine.checkpoints.quantized import packing
from tests.workers.engine.checkpoints.quantized.gguf import small_files
from tests.workers.engine.checkpoints.quantized.stored_formats import FORMATS
from tests.workers.engine.tiny_models import save_model
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig
from workers.engine.core.request import Request
from workers.preparation import gguf_checkpoint

pytestmark = pytest.mark.long


def said(folder: Path, ranks: int, longest: int) -> list[list[int]]:
    config = EngineConfig(
        device="cpu", dtype="float32", kv_cache_bytes=2**20, tensor_parallel_size=ranks
    )
    engine = build_engine(folder, config)
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    prompts = [tuple(1 + i * i % 5 for i in range(length)) for length in (3, longest)]
    asked = [Request((prompt,), params, request_id=str(i)) for i, prompt in enumerate(prompts)]
    try:
        return [done.choices[0].token_ids for done in engine.generate(asked)]
    finally:
        engine.stop()


@pytest.mark.parametrize(
    ("family", "form"),
    [
        ("llama", "fp8, blocks"),
        ("uneven", "fp8, one scale"),
        ("qwen3_moe", "fp8, blocks"),
        ("tied", "gptq 4"),
    ],
)
def test_ranks_read_their_parts_of_weights_that_are_composed(
    tmp_path: Path, family: str, form: str
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    target.mkdir()
    save_model(source, FAMILIES[family])
    packing.rewrite(source, target, *FORMATS[form])
    assert said(target, 2, 30) == said(target, 1, 30)


def test_ranks_read_their_parts_of_a_gguf_file(tmp_path: Path) -> None:
    wide = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    model = small_files.tiny_model("qwen3", **wide)
    file = small_files.write_gguf(
        tmp_path / "a.gguf", "qwen3", model, kind=GGMLQuantizationType.Q4_K
    )
    gguf_checkpoint.describe(file, tmp_path / "made", "float32", str(file))
    assert said(tmp_path / "made", 2, 30) == said(tmp_path / "made", 1, 30)
