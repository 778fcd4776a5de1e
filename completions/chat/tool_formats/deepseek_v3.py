"""Tool calls of DeepSeek-V3 and R1: JSON in a fenced block, between special tokens."""

from completions.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="deepseek_v3",
    families="DeepSeek-V3, DeepSeek-R1",
    section=("<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581calls\u2581end\uff5c>"),
    call=(
        "<\uff5ctool\u2581call\u2581begin\uff5c>function<\uff5ctool\u2581sep\uff5c>{name}\n```json\n"
        "{arguments}\n```<\uff5ctool\u2581call\u2581end\uff5c>"
    ),
    separator="\n",
    signature=("<\uff5ctool\u2581calls\u2581begin\uff5c>", "```json"),
)
