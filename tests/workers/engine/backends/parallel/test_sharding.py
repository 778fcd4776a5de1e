"""What can be split, and what is refused, decided on models without weights."""

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from tests.workers.engine.backends.parallel.families import FAMILIES
from workers.engine.backends.parallel.group import Ranks
from workers.engine.backends.parallel.sharding import plan_sharding
from workers.engine.exceptions import UnsupportedModel

CPU = torch.device("cpu")
LATENT = {
    "model_type": "deepseek_v2", "hidden_size": 64, "num_attention_heads": 4, "n_group": 1,
    "num_key_value_heads": 4, "num_hidden_layers": 1, "n_routed_experts": 4, "topk_group": 1,
}  # fmt: skip


def plan(options, size, rank=0):
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(AutoConfig.for_model(**options))
    return plan_sharding(skeleton, Ranks(rank, size, CPU, lambda: None))


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma2", "gemma3"])
def test_equal_parts_follow_the_plan_of_transformers(family):
    sharding = plan(FAMILIES[family], 4)
    assert sharding.share is None
    assert (sharding.config.tp_size, sharding.config.ep_size) == (4, 1)
    assert sharding.config.tp_plan == "auto"


def test_experts_are_kept_whole_where_every_rank_gets_as_many():
    assert plan(FAMILIES["qwen3_moe"], 4).config.ep_size == 4
    assert plan({**FAMILIES["qwen3_moe"], "num_experts": 6}, 4).config.ep_size == 1


def test_heads_that_do_not_divide_are_read_whole_and_cut():
    sharding = plan(FAMILIES["uneven"], 2, rank=1)
    assert sharding.share.kv_heads == range(1, 3)
    rules = sharding.config.tp_plan
    assert {path.rpartition(".")[2] for path in rules} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert set(rules.values()) == {"replicate"}


@pytest.mark.parametrize(
    ("options", "size", "complaint"),
    [
        (LATENT, 3, "DeepseekV2ForCausalLM has 4 attention heads and 4 KV heads, which 3 ranks"),
        (FAMILIES["llama"], 16, "16 ranks cannot share 8 attention heads"),
        (
            {"model_type": "bloom", "hidden_size": 64, "n_head": 4, "n_layer": 1},
            2, "transformers has no plan to split BloomForCausalLM: set tensor_parallel_size = 1",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_split_is_refused_with_figures(options, size, complaint):
    with pytest.raises(UnsupportedModel) as refused:
        plan(options, size)
    assert complaint in str(refused.value)
