"""Calls as Llama 3.1 and later write them: a bare JSON object with name and parameters."""

from collections.abc import Sequence

from completions.chat.arguments import arguments
from completions.chat.events import CallParser
from completions.chat.json_calls import JsonCallParser
from completions.chat.tools import Call, Tool, dump
from completions.grammars.structural_tag import json_nodes
from completions.grammars.structural_tag.json_nodes import JSONNode

_OPENING = '{"name": "'
_PREAMBLE = """\
You have access to the following functions. To call one, answer with a JSON object of the form
{{"name": "<function name>", "parameters": <a JSON object of its arguments>}} and nothing else.

{tools}"""


class Llama3:
    name = "llama3"
    opening = _OPENING
    marks: tuple[str, ...] = ()
    between = "; "

    def call(self, tool: Tool) -> JSONNode:
        header = f'{_OPENING}{tool.name}", "parameters": '
        return json_nodes.tag(header, arguments(tool), "}")

    def write(self, call: Call) -> str:
        return f'{_OPENING}{call.name}", "parameters": {dump(call.arguments)}}}'

    def preamble(self, tools: Sequence[Tool]) -> str:
        return _PREAMBLE.format(tools="\n\n".join(dump(tool.as_dict()) for tool in tools))

    def parser(self, tools: Sequence[Tool]) -> CallParser:
        return JsonCallParser(_OPENING, _OPENING, "}", separators=";")
