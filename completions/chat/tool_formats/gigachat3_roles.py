"""Tool calls of the first GigaChat 3: an object as the message of a role of its own."""

from completions.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="gigachat3_roles",
    families="GigaChat 3 before 3.1",
    call='function call<|role_sep|>\n{"name": "{name}", "arguments": {arguments}}',
    separator="<|message_sep|>\n\n",
    unseen=("<|message_sep|>",),
    trigger="function call<|role_sep|>",
    signature=("<|role_sep|>", "'function call'"),
)
