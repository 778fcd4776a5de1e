"""Tool calls of FunctionGemma: names and values in literals with quotes of their own."""

from completions.chat.tool_format import ToolFormat
from completions.grammars.structural_tag.literals import Literals

FORMAT = ToolFormat(
    name="functiongemma",
    families="FunctionGemma",
    call="<start_function_call>call:{name}{{arguments}}<end_function_call>",
    arguments=Literals("functiongemma", ":", ",", "<escape>"),
    signature=("<start_function_call>",),
)
