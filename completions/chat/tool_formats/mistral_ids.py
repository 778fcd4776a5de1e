"""Tool calls of Mistral with tokenizers of version 11: an id of nine characters after the name."""

from completions.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="mistral_ids",
    families="Mistral Small 3.2",
    call="[TOOL_CALLS]{name}[CALL_ID]{id}[ARGS]{arguments}",
    ids="[a-zA-Z0-9]{9}",
    id_digits=9,
    call_id="{id}",
    signature=("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"),
)
