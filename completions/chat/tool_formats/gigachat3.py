"""Tool calls of GigaChat 3: an object after a special token."""

from completions.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="gigachat3",
    families="GigaChat 3.1",
    call='<|function_call|>{"name": "{name}", "arguments": {arguments}}',
    trigger="<|function_call|>",
    signature=("<|function_call|>",),
)
