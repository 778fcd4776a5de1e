"""Tool calls of Mistral since tokenizers of version 11: a name and JSON after special tokens."""

from completions.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="mistral",
    families="Magistral, Devstral, Ministral 3, Mistral Large 3",
    call="[TOOL_CALLS]{name}[ARGS]{arguments}",
    id_digits=9,
    call_id="{id}",
    signature=("[TOOL_CALLS]", "[ARGS]"),
)
