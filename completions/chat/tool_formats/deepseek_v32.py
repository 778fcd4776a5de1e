"""Tool calls of DeepSeek-V3.2: DSML, whose parameters say whether they are strings."""

from completions.chat.tool_format import ToolFormat
from completions.grammars.structural_tag.parameters import STYLES

FORMAT = ToolFormat(
    name="deepseek_v32",
    families="DeepSeek-V3.2",
    section=("<\uff5cDSML\uff5cfunction_calls>\n", "\n</\uff5cDSML\uff5cfunction_calls>"),
    call='<\uff5cDSML\uff5cinvoke name="{name}">\n{arguments}\n</\uff5cDSML\uff5cinvoke>',
    arguments=STYLES["deepseek_xml"],
    separator="\n",
    signature=("\uff5cDSML\uff5c", "function_calls>"),
    model_types=("deepseek_v32",),
)
