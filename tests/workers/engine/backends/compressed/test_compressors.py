"""Compressors on flat batches: what they store and keep, and prompts that are cut anywhere."""

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from tests.representatives import stand_for_all
from tests.workers.engine import greedy
from tests.workers.engine.backends.compressed.models import FEW, MANY, SHAPE, WINDOW
from tests.workers.engine.backends.tight_engine import own_logits
from workers.engine.backends.base.paged import PagedModel
from workers.engine.backends.compressed.compressors import find_compressor, wrap_compressors
from workers.engine.backends.cpu.backend import CpuBackend
from workers.engine.backends.cuda.backend import CudaBackend
from workers.engine.backends.recurrent.states import StateKey, StateShape
from workers.engine.checkpoints.parity.probe import find_states, probe
from workers.engine.checkpoints.parity.trial import Batches
from workers.engine.core.attention_backend import AttentionBackend
from workers.engine.core.layer_shape import LayerShape, Visible
from workers.engine.exceptions import UnsupportedModel

CPU = torch.device("cpu")
BACKENDS = {"cpu": CpuBackend(), "cuda": CudaBackend(CPU)}
TEXTS = [list(greedy.prompt(length, salt=length)) for length in (17, 45, 61)]


def make_model(backend: AttentionBackend, **options: Any) -> Any:
    config = AutoConfig.for_model(**{"vocab_size": 400, **SHAPE, **options})
    torch.manual_seed(0)
    make: Any = AutoModelForCausalLM.from_config
    model = make(config, dtype=torch.float32, attn_implementation=backend.attention).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("position_bias", "sinks")):  # zeros, unless they are trained
                parameter.normal_()
    wrap_compressors(model)
    return model


@pytest.mark.represented_by("3-cpu")
@pytest.mark.parametrize(
    ("block_size", "device"),
    stand_for_all([(3, "cpu"), (16, "cuda")], list(product([3, 4, 16], BACKENDS))),
)
@torch.inference_mode()
def test_logits_do_not_depend_on_how_prompts_are_cut(block_size: int, device: str) -> None:
    backend = BACKENDS[device]
    model = make_model(backend)
    expected = own_logits(model, backend, TEXTS)
    paged = PagedModel(model)
    paged.mixers = find_states(paged, backend, block_size, CPU)
    shapes = probe(paged, backend, block_size, CPU).shapes
    for chunks in ([1] * 3, [2, 7, 61], [MANY, FEW, MANY - 1], [100, 33, 13]):
        runner = Batches(paged, backend, block_size, shapes)
        actual = runner.run(TEXTS, [len(text) for text in TEXTS], chunks)
        torch.testing.assert_close(actual, expected, atol=2e-4, rtol=2e-4)


def test_entries_stand_beside_tokens_and_rings_beside_pages() -> None:
    model = make_model(BACKENDS["cpu"])
    paged = PagedModel(model)
    states = find_states(paged, BACKENDS["cpu"], 4, CPU)
    shapes = probe(paged, BACKENDS["cpu"], 4, CPU).shapes
    heavy, light, plain, _ = [layer.self_attn for layer in model.model.layers]
    near: dict[str, Any] = {"visible": Visible(WINDOW), "has_sinks": True}
    assert shapes[heavy] == LayerShape(1, 16, 0, rate=MANY, **near)
    assert shapes[light] == LayerShape(1, 16, 0, rate=FEW, **near)
    assert shapes[light.compressor.indexer] == LayerShape(1, 16, 0, rate=FEW, has_tokens=False)
    assert shapes[plain].rate is None
    assert len(shapes) == 6
    assert states is not None
    ring, index_ring = StateKey("window", 0), StateKey("window", 1)
    assert states.shapes[heavy.compressor] == {ring: StateShape((MANY, 2 * 16), torch.float32)}
    overlapping = StateShape((2 * FEW, 4 * 16), torch.float32)
    assert states.shapes[light.compressor] == {ring: overlapping, index_ring: overlapping}


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        (LayerShape(1, 512, 0, rate=4), 16 + 4),
        (LayerShape(1, 512, 0, rate=128), 16 + 1),
        (LayerShape(1, 128, 0, rate=4, has_tokens=False), 4),
        (LayerShape(1, 128, 0, rate=5, has_tokens=False), 4),
    ],
)
def test_a_block_has_room_for_the_entries_that_may_end_in_it(shape: LayerShape, size: int) -> None:
    assert shape.num_lines(16) == size
    assert shape.block_bytes(16, torch.bfloat16) == 2 * size * shape.key_dim


def test_a_model_without_compressors_is_left_alone() -> None:
    config = AutoConfig.for_model(
        "llama", vocab_size=400, hidden_size=32, intermediate_size=32, num_attention_heads=2,
        num_hidden_layers=1,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config)
    wrap_compressors(model)
    assert not any(find_compressor(module) for module in model.modules())


class _Unknown(nn.Module):
    """A compressor that calls its cache otherwise."""

    compress_rate = 4

    def __init__(self, call: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self._call = call

    def forward(
        self,
        hidden_states: Tensor,
        q_residual: Tensor,
        position_ids: Tensor,
        past_key_values: Any,
        layer_idx: int,
    ) -> Tensor:
        return self._call(past_key_values.layers[layer_idx], hidden_states)


@pytest.mark.parametrize(
    ("compressor", "reason"),
    [
        (_Unknown(lambda cache, hidden: cache.compress(hidden)), "cannot be batched"),
        (
            _Unknown(lambda cache, hidden: cache.store_compression_weights("b", hidden, hidden)),
            "caches 'b', which is not known",
        ),
    ],
)
def test_a_compressor_that_is_not_known_is_refused(compressor: nn.Module, reason: str) -> None:
    backend = BACKENDS["cpu"]
    model = make_model(backend)
    model.model.layers[0].self_attn.compressor = compressor
    wrap_compressors(model)
    with pytest.raises(UnsupportedModel, match=reason):
        find_states(PagedModel(model), backend, 4, CPU)
