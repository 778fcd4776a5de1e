"""Heads from latents: what the C forward stores of them is what the modules store."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from completions.contract.sampling import SamplingParams
from tests.workers.engine import greedy
from tests.workers.engine.backends.cpu.shapes import SHAPES
from tests.workers.engine.backends.cpu.test_decoder import engine_of, native_of, save
from workers.engine.backends.base.loaded_model import LoadedModel
from workers.engine.backends.cpu.backend import CpuBackend
from workers.engine.backends.cpu.layers.library import load_library
from workers.engine.checkpoints.loader import load_model
from workers.engine.config import EngineConfig
from workers.engine.core.attention_backend import Part
from workers.engine.core.request import Request

pytestmark = pytest.mark.skipif(load_library() is None, reason="needs the C kernels")

NAMES = [name for name, options in SHAPES.items() if "kv_lora_rank" in options]
BLOCK = 16
LENGTH = 20


@torch.inference_mode()
def _pages(loaded: LoadedModel, run_modules: bool) -> list[Tensor]:
    """Keys and values of the first layer, [heads, tokens, dim], after a prompt."""
    cache = loaded.backend.make_cache(loaded.layer_shapes, 4, BLOCK, loaded.dtype)
    metadata = CpuBackend().batch(cache, [Part(0, LENGTH, [2, 1])], BLOCK)
    metadata.run_modules = run_modules
    ids = torch.tensor(greedy.prompt(LENGTH))
    loaded.paged(ids, torch.arange(LENGTH), metadata, torch.arange(LENGTH))
    layer = next(iter(cache.layers.values()))
    pages = layer.gather(layer.head_major(torch.tensor([2, 1])), 1)
    return [stored[:, :LENGTH] for stored in pages]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "deepseek_v3 with halves" else pytest.mark.long)
        for name in NAMES
    ],
)
def test_keys_and_values_lie_where_the_modules_store_them(tmp_path: Path, name: str) -> None:
    path = save(tmp_path, name, SHAPES[name])
    loaded = load_model(path, EngineConfig(device="cpu", dtype="bfloat16"))
    assert loaded.paged.native is not None
    for ours, theirs in zip(_pages(loaded, False), _pages(loaded, True), strict=True):
        assert ours.shape == theirs.shape
        assert (ours.float() - theirs.float()).norm() < 0.02 * theirs.float().norm()


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_texts_go_on_from_the_prefix_cache_and_with_grammars(tmp_path: Path, name: str) -> None:
    engine = engine_of(save(tmp_path, name, SHAPES[name]))
    assert native_of(engine) is not None
    params = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
    prompt = greedy.prompt(70)

    def run(number: int, grammar: str | None = None) -> tuple[list[int], int]:
        [completion] = engine.generate(
            [Request((prompt,), params, grammar, request_id=f"r{number}")]
        )
        assert completion.error is None
        return completion.choices[0].token_ids, completion.usage.cached_tokens

    first, uncached = run(0)
    second, cached = run(1)
    assert first == second
    assert (uncached, cached) == (0, 64)
    held, _ = run(2, "start: /[a-c]{4} [x-z]{3}/")
    again, _ = run(3, "start: /[a-c]{4} [x-z]{3}/")
    assert held == again
    engine.stop()
