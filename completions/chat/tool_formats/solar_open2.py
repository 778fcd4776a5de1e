"""Tool calls of Solar Open 2: a name, then arguments between special tokens, strings without
quotes."""

from completions.chat.tool_format import ToolFormat
from completions.grammars.structural_tag.parameters import Style

FORMAT = ToolFormat(
    name="solar_open2",
    families="Solar Open 2",
    call="<|tool_call:start|>{name}\n{arguments}\n<|tool_call:end|>",
    arguments=Style("solar_open2", "<|tool_arg:start|>", "<|tool_arg:value|>", "<|tool_arg:end|>"),
    separator="\n",
    signature=("<|tool_call:start|>",),
    model_types=("solar_open2",),
)
