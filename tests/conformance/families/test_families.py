"""Every family in the table, and a few of each kind in every run."""

import ast
import inspect
from pathlib import Path

import pytest
from transformers.configuration_utils import ALLOWED_ATTN_LAYER_TYPES
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from tests.conformance.config_sizes import text_type
from tests.conformance.families import report
from tests.conformance.families.popular import POPULAR, Popular
from tests.conformance.families.shapes import tiny
from tests.conformance.families.table import CASES, Case
from tests.conformance.families.trial import (
    NO_REFERENCE,
    find_forward_on_gpu,
    try_case,
    try_in_bfloat16,
)

QUICK = {
    "deepseek_v3", "falcon alibi", "gpt_oss", "jamba", "llama4_text", "phi3 longrope", "qwen2_5_vl",
    "qwen2_moe windows w32",
}  # fmt: skip
"""Positions of three kinds, experts, latent attention, windows, chunks, sinks, recurrent states,
and the text half of a model that reads images."""

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers, on kernels that it would like


by_case = pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=str(case), marks=() if str(case) in QUICK else pytest.mark.long)
        for case in CASES
    ],
)


@pytest.mark.represented_by("gpt_oss")
@by_case
def test_a_family_writes_what_generate_writes(tmp_path: Path, case: Case) -> None:
    verdict = try_case(tmp_path, case)
    assert verdict.failures == []
    assert verdict.forward == report.read()[str(case)]["float32"]


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_family_in_bfloat16_is_as_exact_as_transformers(tmp_path: Path, case: Case) -> None:
    verdict = try_in_bfloat16(tmp_path, case)
    if verdict.forward == NO_REFERENCE:
        pytest.skip(f"transformers cannot score a prompt: {verdict.failures[0][:80]}")
    assert verdict.failures == []
    assert verdict.forward == report.read()[str(case)]["bfloat16"]


@pytest.mark.represented_by("llama4_text")
@by_case
def test_a_family_runs_on_a_gpu_as_the_page_says(tmp_path: Path, case: Case) -> None:
    assert find_forward_on_gpu(tmp_path, case) == report.read()[str(case)]["cuda"]


def test_no_popular_model_runs_one_sequence_at_a_time() -> None:
    forwards = report.read()
    assert len({model.name for model in POPULAR}) == 40
    assert sorted(POPULAR, key=lambda model: -model.downloads) == list(POPULAR)
    for model in POPULAR:
        assert forwards[model.case]["bfloat16"] in ("c", "torch"), model.name
        assert forwards[model.case]["cuda"] == "cuda", model.name


@pytest.mark.parametrize("model", POPULAR, ids=lambda model: model.name)
def test_a_popular_model_has_the_type_of_its_configuration(model: Popular) -> None:
    [case] = [case for case in CASES if str(case) == model.case]
    assert case.family in (model.model_type, text_type(model.model_type))


def test_the_page_of_models_is_current() -> None:
    forwards = report.read()
    assert set(forwards) == set(map(str, CASES))
    text = report.PAGE.read_text()
    assert text == report.page(forwards, text), "run python -m tests.conformance.families.report"


def test_the_names_of_the_few_exist() -> None:
    assert set(map(str, CASES)) >= QUICK


def test_each_configuration_has_a_name_of_its_own() -> None:
    assert len(set(map(str, CASES))) == len(CASES)


NAMED_ALONE = {"deepseek_v4": {"moe"}, "dots3_note_text": {"full_attention"}}
"""Kinds that a configuration's class names and has no layer of: that of an MLP, and a former name
of another kind."""


@pytest.mark.represented_by("deepseek_v3", "dots1")
@pytest.mark.parametrize("family", sorted({case.family for case in CASES}))
def test_every_kind_of_layer_of_a_family_is_tried(family: str) -> None:
    """Those that its configuration has unless it says otherwise, and those that the code of its
    class names: no class lists what it permits."""
    configs = [tiny(case.family, case.options) for case in CASES if case.family == family]
    tried = [config.get_text_config() for config in configs]
    defaults = CONFIG_MAPPING[family]().get_text_config()
    for name in ("layer_types", "mlp_layer_types"):
        kinds = set(getattr(defaults, name, None) or ())
        if name == "layer_types" and hasattr(defaults, name):
            kinds |= _named_kinds(type(defaults)) - NAMED_ALONE.get(family, set())
        assert kinds <= {kind for text in tried for kind in getattr(text, name, None) or ()}


def _named_kinds(config: type) -> set[str]:
    """The kinds of attention layers that are constants in the code of a class."""
    nodes = ast.walk(ast.parse(inspect.getsource(config)))
    return {
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and node.value in ALLOWED_ATTN_LAYER_TYPES
    }
