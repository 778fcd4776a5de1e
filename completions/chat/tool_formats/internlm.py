"""Tool calls of InternLM2: an object between special tokens."""

from completions.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="internlm",
    families="InternLM2, 2.5",
    call=(
        '<|action_start|><|plugin|>\n{"name": "{name}", "parameters": {arguments}}<|action_end|>'
    ),
    separator="\n",
    signature=("<|action_start|>", "<|plugin|>"),
)
