"""Tool calls of Step 3: invocations between special tokens, strings without quotes."""

from completions.chat.tool_format import ToolFormat
from completions.grammars.structural_tag.parameters import Style

FORMAT = ToolFormat(
    name="step3",
    families="Step 3",
    section=("<\uff5ctool_calls_begin\uff5c>", "<\uff5ctool_calls_end\uff5c>"),
    call=(
        "<\uff5ctool_call_begin\uff5c>function<\uff5ctool_sep\uff5c>"
        '<steptml:invoke name="{name}">{arguments}</steptml:invoke><\uff5ctool_call_end\uff5c>'
    ),
    arguments=Style("step3", '<steptml:parameter name="', '">', "</steptml:parameter>"),
    separator="\n",
    signature=("steptml:invoke",),
)
