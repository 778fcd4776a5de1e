"""Tool calls of Hermes, Qwen and other ChatML models: JSON between tags."""

from completions.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="hermes",
    families="Hermes, Qwen2.5, Qwen3, Granite 4, SmolLM3 and other ChatML models",
    call='<tool_call>\n{"name": "{name}", "arguments": {arguments}}\n</tool_call>',
    separator="\n",
    instructions="""\
You may call one or more of these functions, whose signatures are inside <tools></tools>:
<tools>
{tools}
</tools>

To call a function, answer with its name and arguments as JSON inside <tool_call></tool_call>:
<tool_call>
{"name": "<function name>", "arguments": <arguments as a JSON object>}
</tool_call>""",
    signature=("<tool_call>", '"name'),
)
