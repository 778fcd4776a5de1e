"""The formats of tool calls."""

from completions.catalog.entries import TOOL_FORMAT_NAMES
from completions.chat.tool_formats import TOOL_FORMATS


def test_models_toml_names_the_formats_that_there_are():
    assert set(TOOL_FORMAT_NAMES) == set(TOOL_FORMATS)
