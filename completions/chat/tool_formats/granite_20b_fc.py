"""Tool calls of Granite-20B-FunctionCalling: objects, each after a mark."""

from completions.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="granite_20b_fc",
    families="Granite-20B-FunctionCalling",
    call='<function_call> {"name": "{name}", "arguments": {arguments}}',
    separator="\n",
    trigger="<function_call>",
    signature=("<function_call>",),
)
