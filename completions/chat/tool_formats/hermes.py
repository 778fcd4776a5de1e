"""Tool calls of Hermes, Qwen and other ChatML models: JSON between tags."""

from completions.chat.json_calls import JSONFormat

FORMAT = JSONFormat(
    name="hermes",
    opening="<tool_call>",
    closing="</tool_call>",
    delimiters=("<tool_call>", "</tool_call>"),
    between="\n",
    begin='<tool_call>\n{"name": "{name}", "arguments": ',
    end="}\n</tool_call>",
    instructions="""\
You may call one or more of these functions, whose signatures are inside <tools></tools>:
<tools>
{tools}
</tools>

To call a function, answer with its name and arguments as JSON inside <tool_call></tool_call>:
<tool_call>
{"name": "<function name>", "arguments": <arguments as a JSON object>}
</tool_call>""",
)
