"""Tool calls of MiniMax-M2: invocations in one section, strings without quotes."""

from completions.chat.tool_format import ToolFormat
from completions.grammars.structural_tag.parameters import STYLES

FORMAT = ToolFormat(
    name="minimax_m2",
    families="MiniMax-M2",
    section=("<minimax:tool_call>\n", "\n</minimax:tool_call>"),
    call='<invoke name="{name}">\n{arguments}\n</invoke>',
    arguments=STYLES["minimax_xml"],
    separator="\n",
    signature=("<minimax:tool_call>",),
    model_types=("minimax_m2",),
)
