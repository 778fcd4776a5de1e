"""Tool calls of Llama 4 as a list of Python calls, around which it may write special tokens."""

from dataclasses import replace

from completions.chat.tool_formats.pythonic import FORMAT as PYTHONIC

FORMAT = replace(
    PYTHONIC,
    name="llama4_pythonic",
    families="Llama 4 with a pythonic template",
    signature=("[func_name1(", "<|header_start|>"),
)
