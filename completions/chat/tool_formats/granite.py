"""Tool calls of Granite 3: a list of objects."""

from completions.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="granite",
    families="Granite 3",
    section=("<|tool_call|>[", "]"),
    call='{"name": "{name}", "arguments": {arguments}}',
    separator=", ",
    trigger="<|tool_call|>",
    signature=("<|tool_call|>",),
)
