"""Tool calls of LFM2: a list of Python calls between special tokens."""

from completions.chat.tool_format import ToolFormat
from completions.grammars.structural_tag.literals import PYTHON

FORMAT = ToolFormat(
    name="lfm2",
    families="LFM2, LFM2.5",
    section=("<|tool_call_start|>[", "]<|tool_call_end|>"),
    call="{name}({arguments})",
    arguments=PYTHON,
    separator=", ",
    trigger="<|tool_call_start|>",
    signature=("<|tool_call_start|>",),
    other_signature=("<|im_start|>", "List of tools: "),
    model_types=("lfm2", "lfm2_moe"),
)
