"""Tool calls of MiniMax-M1: objects between tags, one a line."""

from completions.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="minimax_m1",
    families="MiniMax-M1",
    section=("<tool_calls>\n", "\n</tool_calls>"),
    call='{"name": "{name}", "arguments": {arguments}}',
    separator="\n",
    trigger="<tool_calls>",
    signature=("<tool_calls></tool_calls>", "<tool-name>"),
    model_types=("minimax", "minimax_m1"),
)
