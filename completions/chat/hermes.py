"""Calls as Hermes, Qwen and other ChatML models write them: JSON between <tool_call> marks."""

from collections.abc import Sequence

from completions.chat.arguments import arguments
from completions.chat.events import CallParser
from completions.chat.json_calls import JsonCallParser
from completions.chat.tools import Call, Tool, dump
from completions.grammars.structural_tag import json_nodes
from completions.grammars.structural_tag.json_nodes import JSONNode

_OPENING = "<tool_call>"
_CLOSING = "</tool_call>"
_PREAMBLE = """\
You may call one or more of these functions, whose signatures are inside <tools></tools>:
<tools>
{tools}
</tools>

To call a function, answer with its name and arguments as JSON inside <tool_call></tool_call>:
<tool_call>
{{"name": "<function name>", "arguments": <arguments as a JSON object>}}
</tool_call>"""


class Hermes:
    name = "hermes"
    opening = _OPENING
    marks: tuple[str, ...] = (_OPENING, _CLOSING)
    between = "\n"

    def call(self, tool: Tool) -> JSONNode:
        header = f'{_OPENING}\n{{"name": "{tool.name}", "arguments": '
        return json_nodes.tag(header, arguments(tool), f"}}\n{_CLOSING}")

    def write(self, call: Call) -> str:
        written = f'{{"name": "{call.name}", "arguments": {dump(call.arguments)}}}'
        return f"{_OPENING}\n{written}\n{_CLOSING}"

    def preamble(self, tools: Sequence[Tool]) -> str:
        return _PREAMBLE.format(tools="\n".join(dump(tool.as_dict()) for tool in tools))

    def parser(self, tools: Sequence[Tool]) -> CallParser:
        return JsonCallParser(_OPENING, "", _CLOSING)
