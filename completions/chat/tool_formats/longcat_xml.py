"""Tool calls of later LongCat models: a name, then keys and values between tags, as GLM writes."""

from completions.chat.tool_format import ToolFormat
from completions.grammars.structural_tag.parameters import Style

FORMAT = ToolFormat(
    name="longcat_xml",
    families="LongCat-Flash-Lite and later",
    call="<longcat_tool_call>{name}\n{arguments}\n</longcat_tool_call>",
    arguments=Style(
        "longcat_xml",
        "<longcat_arg_key>",
        "</longcat_arg_key>{spaces}<longcat_arg_value>",
        "</longcat_arg_value>",
    ),
    separator="\n",
    signature=("<longcat_tool_call>", "<longcat_arg_key>"),
)
