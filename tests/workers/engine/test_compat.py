"""Uses each private name of torch and transformers once, so that a new release shows what it
changed."""

import ast
import inspect
import re
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
)
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.models.falcon.modeling_falcon import FalconPreTrainedModel

from workers.engine import compat

WORKED = {"torch": "2.13.0", "transformers": "5.23.0"}
"""The releases with which every name in ``compat`` worked last."""

ENGINE = Path(compat.__file__).parent
PRIVATE = re.compile(
    r"torch\._C|torch\.utils\._|torch\.ops\.mkldnn\._|\._(global_mapping|model_mapping|from_config|"
    r"attn_implementation|supports_sdpa|can_set_attn\w*|update_model_kwargs\w*|mesh_manager|"
    r"is_quantized|schema)\b"
)

SMALL = LlamaConfig(
    vocab_size=8,
    hidden_size=8,
    intermediate_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=2,
)


def test_nothing_else_in_the_engine_names_them() -> None:
    found = {
        str(path.relative_to(ENGINE))
        for path in ENGINE.rglob("*.py")
        if PRIVATE.search(path.read_text())
    }
    assert found == {"compat.py"}


def test_the_releases_are_those_with_which_they_worked() -> None:
    """Set ``WORKED`` to a new release once the other tests of this file pass with it."""
    assert {name: version(name).split("+")[0] for name in WORKED} == WORKED


def test_every_name_is_used_here() -> None:
    tree = ast.parse(inspect.getsource(compat))
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    unused = {name for name in names if f"compat.{name}(" not in Path(__file__).read_text()}
    assert not unused


class Watching(TorchFunctionMode):
    seen = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen += 1
        return function(*args, **(kwargs or {}))


class Plain(torch.Tensor):
    pass


def test_operations_pass_modes_unwatched() -> None:
    with Watching() as mode:
        torch.ones(1) + 1
        seen = mode.seen
        with compat.without_torch_functions():
            torch.ones(1) + 1
    assert 0 < seen == mode.seen


def test_subclasses_compute_as_tensors() -> None:
    with compat.without_watched_tensors():
        assert type(torch.ones(1).as_subclass(Plain) + 1) is torch.Tensor


def test_an_allocation_that_never_began_cannot_be_ended() -> None:
    with pytest.raises((RuntimeError, AttributeError, TypeError)) as refusal:
        compat.end_allocation_to_pool(0, (0, 0))
    if torch.cuda.is_available():
        assert refusal.type is RuntimeError


def test_reordered_weights_multiply_as_they_did() -> None:
    if not compat.has_onednn_bfloat16():
        pytest.skip("oneDNN does not multiply in bfloat16 here")
    weight, bias = torch.randn(32, 16).bfloat16(), torch.randn(32).bfloat16()
    hidden = torch.randn(3, 16).bfloat16()
    reordered = compat.reorder_linear_weight(weight)
    actual = compat.multiply_reordered(hidden, reordered, bias)
    torch.testing.assert_close(actual, nn.functional.linear(hidden, weight, bias))


def test_finished_work_needs_no_waiting() -> None:
    assert compat.make_finished_work() is not None


def test_operations_have_names() -> None:
    assert compat.schema_name(torch.ops.aten.add.Tensor) == "aten::add"


def test_functions_of_masks_can_be_added_and_removed() -> None:
    functions = compat.mask_functions(ALL_MASK_ATTENTION_FUNCTIONS)
    functions["quire_test"] = print
    assert ALL_MASK_ATTENTION_FUNCTIONS["quire_test"] is print
    del functions["quire_test"]
    assert "quire_test" not in ALL_MASK_ATTENTION_FUNCTIONS


def test_automatic_classes_know_their_configurations() -> None:
    assert compat.has_class_for(AutoModelForCausalLM, SMALL)
    assert not compat.has_class_for(AutoModelForCausalLM, PreTrainedConfig())


def test_models_are_made_and_say_how_they_attend() -> None:
    model = compat.make_from_config(LlamaForCausalLM, SMALL, attn_implementation="eager")
    assert compat.supports_sdpa(model)
    assert compat.get_attention(model.config) == "eager"
    compat.set_attention(model.config, "sdpa")
    assert compat.get_attention(model.config) == "sdpa"
    assert compat.get_attention(object(), "none") == "none"


def test_a_class_with_attention_of_its_own_can_be_given_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cached = "_can_set_attn_implementation_cached_value"
    monkeypatch.setattr(FalconPreTrainedModel, cached, False, raising=False)
    assert not FalconPreTrainedModel._can_set_attn_implementation()
    compat.let_attention_be_set(FalconPreTrainedModel)
    assert FalconPreTrainedModel._can_set_attn_implementation()


def test_generate_goes_on_from_an_output() -> None:
    model, cache = LlamaForCausalLM(SMALL), DynamicCache()
    outputs = CausalLMOutputWithPast(past_key_values=cache)
    inputs = {"attention_mask": torch.ones(1, 2), "use_cache": True}
    updated = compat.update_inputs(model, outputs, inputs)
    assert updated["past_key_values"] is cache
    assert updated["attention_mask"].shape == (1, 3)


def test_a_split_model_names_its_mesh() -> None:
    class Meshes:
        def get_mesh(self, name: str) -> str:
            return name

    class Model:
        _mesh_manager = Meshes()

    assert compat.tensor_parallel_mesh(Model()) == "tp"
    with pytest.raises(AttributeError):
        compat.tensor_parallel_mesh(object())


def test_quantization_is_forgotten() -> None:
    module = nn.Module()
    module.config = LlamaConfig()
    module.config._is_quantized = True
    compat.forget_quantized(module)
    assert not getattr(module.config, "_is_quantized", False)
    compat.forget_quantized(nn.Module())
