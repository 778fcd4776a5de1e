"""Tool calls of GLM-4.5 and later: a name, then keys and values between tags.

Strings are written without quotes, other values as JSON.
"""

from completions.chat.tool_format import ToolFormat
from completions.grammars.structural_tag.parameters import STYLES

FORMAT = ToolFormat(
    name="glm",
    families="GLM-4.5, 4.6, 4.7, 5",
    call="<tool_call>{name}\n{arguments}\n</tool_call>",
    arguments=STYLES["glm_xml"],
    separator="\n",
    signature=("<tool_call>", "<arg_key>", "<arg_value>"),
    model_types=("glm4_moe", "glm_moe_dsa"),
)
