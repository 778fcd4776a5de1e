"""Tool calls of Kimi K2: an id made of the name and the number of the call, then JSON."""

from completions.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="kimi_k2",
    families="Kimi K2",
    section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    call=(
        "<|tool_call_begin|>functions.{name}:{id}<|tool_call_argument_begin|>"
        "{arguments}<|tool_call_end|>"
    ),
    call_id="functions.{name}:{id}",
    ends_reasoning=True,
    signature=("<|tool_calls_section_begin|>",),
    model_types=("kimi_k2",),
)
