"""Tool calls of Hunyuan-A13B: a list of objects between tags."""

from completions.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="hunyuan_a13b",
    families="Hunyuan-A13B, Apriel 1.5, 1.6",
    section=("<tool_calls>[", "]</tool_calls>"),
    call='{"name": "{name}", "arguments": {arguments}}',
    separator=", ",
    trigger="<tool_calls>",
    signature=("<tool_calls>[", '"name"'),
    model_types=("hunyuan_v1_moe",),
)
