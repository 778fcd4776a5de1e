"""Tool calls of xLAM: a bare list of objects."""

from completions.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="xlam",
    families="xLAM",
    section=("[", "]"),
    call='{"name": "{name}", "arguments": {arguments}}',
    separator=", ",
    trigger='[{"name": "{name}"',
    signature=('[{"name": "tool_call_name"',),
)
