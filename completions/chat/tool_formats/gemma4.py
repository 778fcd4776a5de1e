"""Tool calls of Gemma 4: names and values in literals with quotes of their own."""

from completions.chat.tool_format import ToolFormat
from completions.grammars.structural_tag.literals import Literals

FORMAT = ToolFormat(
    name="gemma4",
    families="Gemma 4",
    call="<|tool_call>call:{name}{{arguments}}<tool_call|>",
    arguments=Literals("gemma4", ":", ",", '<|"|>'),
    signature=("<|tool_call>", "<tool_call|>"),
    model_types=("gemma4", "gemma4_text"),
)
