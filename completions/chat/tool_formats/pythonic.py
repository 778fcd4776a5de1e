"""Tool calls of models that write a list of Python calls."""

from completions.chat.tool_format import ToolFormat
from completions.grammars.structural_tag.literals import PYTHON

FORMAT = ToolFormat(
    name="pythonic",
    families="Llama 3.2 and others with pythonic templates",
    section=("[", "]"),
    call="{name}({arguments})",
    arguments=PYTHON,
    separator=", ",
    trigger="[{name}(",
    signature=("[func_name1(",),
)
