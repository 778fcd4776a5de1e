"""Calls as Llama 3.1 and later write them: a bare JSON object with name and parameters."""

from collections.abc import Sequence

from completions.chat.events import CallParser
from completions.chat.json_calls import JsonCallParser, json_call_rules
from completions.chat.lark import Rules, Spelling
from completions.chat.tools import Call, Tool, dump

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

    def rules(self, tools: Sequence[Tool], spelling: Spelling) -> Rules:
        written = json_call_rules(tools, '"parameters": ', spelling)
        return Rules(f'body: object "}}"\n{written.lark}', written.parts)

    def write(self, call: Call) -> str:
        return f'{_OPENING}{call.name}", "parameters": {dump(call.arguments)}}}'

    def preamble(self, tools: Sequence[Tool]) -> str:
        return _PREAMBLE.format(tools="\n\n".join(dump(tool.as_dict()) for tool in tools))

    def parser(self, tools: Sequence[Tool]) -> CallParser:
        return JsonCallParser(_OPENING, _OPENING, "}", separators=";")
