"""Tool calls of Nemotron Nano 2: a list of objects between tags."""

from completions.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="nemotron_nano",
    families="Nemotron Nano 2",
    section=("<TOOLCALL>[", "]</TOOLCALL>"),
    call='{"name": "{name}", "arguments": {arguments}}',
    separator=", ",
    trigger="<TOOLCALL>",
    signature=("<TOOLCALL>",),
)
