"""Tool calls of OLMo 3: Python calls between tags, one a line."""

from completions.chat.tool_format import ToolFormat
from completions.grammars.structural_tag.literals import PYTHON

FORMAT = ToolFormat(
    name="olmo3",
    families="OLMo 3",
    section=("<function_calls>", "</function_calls>"),
    call="{name}({arguments})",
    arguments=PYTHON,
    separator="\n",
    signature=("<function_calls>",),
    model_types=("olmo3",),
)
