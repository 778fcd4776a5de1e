"""Indexers on flat batches: what they multiply, and prompts that are cut anywhere."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from tests.workers.engine import greedy
from tests.workers.engine.backends.sparse.models import CHOSEN, FAMILIES
from tests.workers.engine.backends.tight_engine import own_logits
from workers.engine.backends.base.paged import PagedModel
from workers.engine.backends.cpu.backend import CpuBackend
from workers.engine.backends.cuda.backend import CudaBackend
from workers.engine.backends.sparse.indexers import find_latents, use_pages
from workers.engine.checkpoints.parity.probe import probe
from workers.engine.checkpoints.parity.trial import Batches
from workers.engine.core.attention_backend import AttentionBackend
from workers.engine.core.layer_shape import LayerShape
from workers.engine.exceptions import UnsupportedModel

BACKENDS = {"cpu": CpuBackend(), "cuda": CudaBackend(torch.device("cpu"))}
TEXTS = [list(greedy.prompt(length, salt=length)) for length in (CHOSEN + 1, 45, 61)]


def make_model(family: str, backend: AttentionBackend, **options: Any) -> Any:
    settings = {"vocab_size": 400, **FAMILIES[family], "model_type": family, **options}
    config = AutoConfig.for_model(**settings)
    torch.manual_seed(0)
    make: Any = AutoModelForCausalLM.from_config
    model = make(config, dtype=torch.float32, attn_implementation=backend.attention).eval()
    use_pages(model)
    return model


@pytest.mark.represented_by("glm_moe_dsa-cpu", "minimax_m3_vl_text-cuda")
@pytest.mark.parametrize("device", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_logits_do_not_depend_on_how_prompts_are_cut(family: str, device: str) -> None:
    backend = BACKENDS[device]
    model = make_model(family, backend)
    expected = own_logits(model, backend, TEXTS)
    paged = PagedModel(model)
    shapes = probe(paged, backend, 4, model.device).shapes
    for chunks in ([1] * 3, [2, 7, 61], [CHOSEN, CHOSEN - 1, CHOSEN + 1], [100, 33, 13]):
        runner = Batches(paged, backend, 4, shapes)
        actual = runner.run(TEXTS, [len(text) for text in TEXTS], chunks)
        torch.testing.assert_close(actual, expected, atol=2e-4, rtol=2e-4)


def test_a_token_takes_its_latent_and_index_key() -> None:
    model = make_model("glm_moe_dsa", BACKENDS["cpu"])
    shapes = probe(PagedModel(model), BACKENDS["cpu"], 4, model.device).shapes
    layers = [layer.self_attn for layer in model.model.layers]
    indexers = [layer.indexer for layer in layers if layer.indexer is not None]
    assert len(layers) == 3
    assert len(indexers) == 2
    latent, index_key = LayerShape(1, 16 + 8, 0), LayerShape(1, 16, 0)
    assert shapes == {**dict.fromkeys(layers, latent), **dict.fromkeys(indexers, index_key)}


def test_an_index_key_of_spans_stands_beside_keys_and_values() -> None:
    model = make_model("minimax_m3_vl_text", BACKENDS["cpu"])
    shapes = probe(PagedModel(model), BACKENDS["cpu"], 4, model.device).shapes
    layers = [layer.self_attn for layer in model.model.layers]
    indexers = [layer.indexer for layer in layers[1:]]
    heads, index_key = LayerShape(2, 16, 16), LayerShape(1, 16, 0)
    assert shapes == {**dict.fromkeys(layers, heads), **dict.fromkeys(indexers, index_key)}


def test_a_model_without_indexers_is_left_alone() -> None:
    settings = {**FAMILIES["deepseek_v32"], "vocab_size": 400, "model_type": "deepseek_v3"}
    config = AutoConfig.for_model(**settings)
    model = AutoModelForCausalLM.from_config(config)
    use_pages(model)
    assert not any(find_latents(module) for module in model.modules())


class _Unknown(nn.Module):
    """An indexer that scores otherwise: without weights of its heads."""

    index_topk = 4

    def __init__(self, indexer: nn.Module) -> None:
        super().__init__()
        self.wk = indexer.wk

    def forward(
        self,
        hidden_states: Tensor,
        q_resid: Tensor,
        position_embeddings: Any,
        attention_mask: Tensor,
        position_ids: Tensor,
        past_key_values: Any = None,
    ) -> Tensor:
        keys = past_key_values.update_indexer(self.wk(hidden_states), 0)
        return (self.wk(hidden_states) @ keys.transpose(1, 2)).topk(1).indices


class _UnknownOfSpans(nn.Module):
    """An indexer that chooses spans without a product."""

    block_size, topk_blocks, local_blocks = 4, 2, 1

    def forward(
        self,
        hidden_states: Tensor,
        position_embeddings: Any,
        past_key_values: Any,
        position_ids: Tensor,
    ) -> Tensor:
        keys: Tensor = past_key_values.layers[0].update_index(hidden_states[:, None])
        return keys


def test_an_indexer_of_spans_that_scores_otherwise_is_refused() -> None:
    backend = BACKENDS["cpu"]
    model = make_model("minimax_m3_vl_text", backend)
    model.model.layers[1].self_attn.indexer = _UnknownOfSpans()
    use_pages(model)
    with pytest.raises(UnsupportedModel, match="scores in an unknown way"):
        probe(PagedModel(model), backend, 4, model.device)


def test_an_indexer_that_scores_otherwise_is_refused() -> None:
    backend = BACKENDS["cpu"]
    model = make_model("glm_moe_dsa", backend)
    first = model.model.layers[0].self_attn
    first.indexer = _Unknown(first.indexer)
    use_pages(model)
    with pytest.raises(UnsupportedModel, match="scores in an unknown way"):
        probe(PagedModel(model), backend, 4, model.device)
