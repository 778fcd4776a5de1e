"""Tool calls of DeepSeek-V4: those of DeepSeek-V3.2 in a section of another name."""

from completions.chat.tool_format import ToolFormat
from completions.grammars.structural_tag.parameters import STYLES

FORMAT = ToolFormat(
    name="deepseek_v4",
    families="DeepSeek-V4",
    section=("<\uff5cDSML\uff5ctool_calls>\n", "\n</\uff5cDSML\uff5ctool_calls>"),
    call='<\uff5cDSML\uff5cinvoke name="{name}">\n{arguments}\n</\uff5cDSML\uff5cinvoke>',
    arguments=STYLES["deepseek_xml"],
    separator="\n",
    signature=("\uff5cDSML\uff5c", "tool_calls>"),
    model_types=("deepseek_v4",),
)
