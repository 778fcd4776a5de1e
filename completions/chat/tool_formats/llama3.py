"""Tool calls of Llama 3.1 and later: a bare object."""

from completions.chat.json_calls import JSONFormat

FORMAT = JSONFormat(
    name="llama3",
    opening='{"name": "',
    closing="}",
    delimiters=(),
    between="; ",
    begin='{"name": "{name}", "parameters": ',
    end="}",
    kept='{"name": "',
    separators=";",
    tools_apart="\n\n",
    instructions="""\
You have access to the following functions. To call one, answer with a JSON object of the form
{"name": "<function name>", "parameters": <a JSON object of its arguments>} and nothing else.

{tools}""",
)
