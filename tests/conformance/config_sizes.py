"""What transformers takes for the sizes that a model's config.json leaves out or names otherwise.

``python -m tests.conformance.config_sizes`` writes them for the web tier, which reads a model's
folder without transformers.
"""

import json
import warnings
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from completions.catalog.config_sizes import TABLE
from tests.conformance.families.table import CASES

Row = dict[str, int | str]


def rows() -> dict[str, Row]:
    """By model type, in the form of the table. Types whose classes state neither size are left
    out, and so are those whose defaults do not make a configuration."""
    types = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *(case.family for case in CASES)}
    types |= {*MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES}
    types |= {each for name in types if (each := text_type(name))}
    found = {name: row(name) for name in sorted(types & {*CONFIG_MAPPING})}
    return {name: sizes for name, sizes in found.items() if sizes}


def text_type(model_type: str) -> str | None:
    """The type of a family's language model, which a config.json names beside its sizes."""
    config = _text_config(model_type)
    return None if config is None else config.model_type


def _text_config(model_type: str) -> Any:
    """The defaults of a family; None if they do not make a configuration."""
    try:
        return CONFIG_MAPPING[model_type]().get_text_config()
    except (AttributeError, ImportError, KeyError, StrictDataclassError, TypeError, ValueError):
        return None


def row(model_type: str) -> Row:
    config = _text_config(model_type)
    if config is None:
        return {}
    names = getattr(type(config), "attribute_map", None) or {}
    sizes: Row = {}
    for key in ("vocab_size", "max_position_embeddings"):
        default = getattr(config, key, None)
        if isinstance(default, int) and default > 0:
            sizes[key] = default
        if key in names:
            sizes[f"{key}_key"] = names[key]
    return sizes


def text(sizes: dict[str, Row]) -> str:
    lines = [f"{json.dumps(name)}: {json.dumps(row)}" for name, row in sizes.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    TABLE.write_text(text(rows()))
