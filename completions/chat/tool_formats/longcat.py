"""Tool calls of LongCat: JSON between tags."""

from completions.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="longcat",
    families="LongCat-Flash",
    call=(
        '<longcat_tool_call>\n{"name": "{name}", "arguments": {arguments}}\n</longcat_tool_call>'
    ),
    separator="\n",
    signature=("<longcat_tool_call>",),
    model_types=("longcat_flash",),
)
