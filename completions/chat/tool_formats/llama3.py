"""Tool calls of Llama 3.1 and later: a bare object."""

from completions.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="llama3",
    families="Llama 3.1, 3.2, 3.3; Llama 4 with JSON",
    call='{"name": "{name}", "parameters": {arguments}}',
    separator="; ",
    trigger='{"name": "{name}"',  # any other object with a name is an answer
    tools_apart="\n\n",
    instructions="""\
You have access to the following functions. To call one, answer with a JSON object of the form
{"name": "<function name>", "parameters": <a JSON object of its arguments>} and nothing else.

{tools}""",
    signature=('"parameters": dictionary of argument name',),
)
