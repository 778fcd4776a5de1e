"""Tool calls of Solar Open: an id, a name and JSON between special tokens, as is the answer."""

from completions.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="solar_open",
    families="Solar Open",
    section=("<|tool_calls|>", "<|calls|>"),
    call=(
        "<|tool_call:begin|>{id}<|tool_call:name|>{name}<|tool_call:args|>{arguments}"
        "<|tool_call:end|>"
    ),
    think=("<|think|>", "<|end|>"),
    ids="[a-z0-9]{10}",
    id_digits=10,
    call_id="{id}",
    content=("<|begin|>assistant", "<|content|>"),
    unseen=("<|end|>",),
    signature=("<|tool_call:begin|>",),
    model_types=("solar_open",),
)
