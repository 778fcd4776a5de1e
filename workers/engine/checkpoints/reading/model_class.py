"""Which class of transformers computes a model that generates text."""

from typing import Any

import transformers
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from workers.engine.compat import has_class_for
from workers.engine.exceptions import UnsupportedModel

_KINDS = (AutoModelForCausalLM, AutoModelForImageTextToText)
"""A model of text, or else one of images and text, which computes text alone as well."""


def model_class(config: Any) -> Any:
    """Return the automatic class of transformers that has one for this configuration. Raises
    UnsupportedModel."""
    for kind in _KINDS:
        if has_class_for(kind, config):
            return kind
    raise UnsupportedModel(
        f"{config.model_type} cannot be read as a causal language model: transformers "
        f"{transformers.__version__} has no class of it that generates text. Serve a model whose "
        "type docs/models.md lists"
    )
