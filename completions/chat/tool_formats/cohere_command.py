"""Tool calls of Command A and later: a list of objects with ids."""

from completions.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="cohere_command",
    families="Command A, Command R7B, Command 4",
    section=("<|START_ACTION|>[\n    ", "\n]<|END_ACTION|>"),
    call='{"tool_call_id": "{id}", "tool_name": "{name}", "parameters": {arguments}}',
    separator=",\n    ",
    unseen=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    trigger="<|START_ACTION|>",
    signature=("<|START_ACTION|>",),
)
