"""Tool calls of Jamba: a list of objects between tags, one a line."""

from completions.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="jamba",
    families="Jamba",
    section=("<tool_calls>[\n    ", "\n]</tool_calls>"),
    call='{"name": "{name}", "arguments": {arguments}}',
    separator=",\n    ",
    trigger="<tool_calls>",
    signature=("<tool_calls>[\\n",),
    model_types=("jamba",),
)
