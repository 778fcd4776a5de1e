"""Tool calls of Apertus: a list of objects, each with a name as its only key."""

from completions.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="apertus",
    families="Apertus",
    section=("<|tools_prefix|>[", "]<|tools_suffix|>"),
    call='{"{name}": {arguments}}',
    separator=", ",
    trigger="<|tools_prefix|>",
    signature=("<|tools_prefix|>",),
    model_types=("apertus",),
)
