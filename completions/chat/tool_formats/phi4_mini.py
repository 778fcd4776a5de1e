"""Tool calls of Phi-4-mini: a list of objects after a word."""

from completions.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="phi4_mini",
    families="Phi-4-mini",
    section=("functools[", "]"),
    call='{"name": "{name}", "arguments": {arguments}}',
    separator=", ",
    signature=("<|tool|>", "<|/tool|>"),
    other_signature=("functools[",),
)
