"""Tool calls of DeepSeek-V3.1: a name and JSON between special tokens."""

from completions.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="deepseek_v31",
    families="DeepSeek-V3.1",
    section=("<\uff5ctool\u2581calls\u2581begin\uff5c>", "<\uff5ctool\u2581calls\u2581end\uff5c>"),
    call=(
        "<\uff5ctool\u2581call\u2581begin\uff5c>{name}<\uff5ctool\u2581sep\uff5c>"
        "{arguments}<\uff5ctool\u2581call\u2581end\uff5c>"
    ),
    signature=("<\uff5ctool\u2581calls\u2581begin\uff5c>",),
)
