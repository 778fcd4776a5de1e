"""The formats in which models write tool calls, by their names in the catalogue.

To add one, write a `ToolFormat` in a module of its own, list it here, and add its name to
`TOOL_FORMAT_NAMES` in `completions/catalog/entries.py`.
"""

from collections.abc import Mapping

from completions.chat.glm_calls import GLM
from completions.chat.json_calls import HERMES, LLAMA3
from completions.chat.tools import ToolFormat

TOOL_FORMATS: Mapping[str, ToolFormat] = {each.name: each for each in (HERMES, LLAMA3, GLM)}
