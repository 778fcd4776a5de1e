"""Tool calls of Mistral before its tokenizers of version 11: a list of objects."""

from completions.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="mistral_list",
    families="Mistral 7B v0.3, Nemo, Mistral Large 2, Mistral Small 3.1",
    section=("[TOOL_CALLS][", "]"),
    call='{"name": "{name}", "arguments": {arguments}}',
    separator=", ",
    trigger="[TOOL_CALLS]",
    id_digits=9,
    call_id="{id}",
    signature=("[TOOL_CALLS]",),
)
