"""Tool calls of Qwen3-Coder and later: a function and its parameters between tags.

Strings are written without quotes between line breaks, other values as JSON.
"""

from completions.chat.tool_format import ToolFormat
from completions.grammars.structural_tag.literals import PYTHON
from completions.grammars.structural_tag.parameters import Style

FORMAT = ToolFormat(
    name="qwen3_coder",
    families="Qwen3-Coder, Qwen3.5, Qwen3.6, MiMo, Step-3.5",
    call="<tool_call>\n<function={name}>\n{arguments}\n</function>\n</tool_call>",
    arguments=Style(
        "qwen3_coder",
        "<parameter=",
        ">\n",
        "\n</parameter>",
        constants=PYTHON.constants,
    ),
    separator="\n",
    ends_reasoning=True,
    signature=("<tool_call>", "<function=", "<parameter="),
    model_types=("qwen3_5", "qwen3_5_moe", "qwen3_next"),
)
