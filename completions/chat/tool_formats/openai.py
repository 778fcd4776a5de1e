"""Tool calls of gpt-oss in harmony's channels: analysis is reasoning, commentary to a function is a
call, and the final channel has the content. An end token ends a turn after its call."""

from completions.chat.tool_format import ToolFormat

FORMAT = ToolFormat(
    name="openai",
    families="gpt-oss",
    call="<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}",
    separator="<|end|><|start|>assistant",
    content=("<|start|>assistant", "<|channel|>final<|message|>"),
    unseen=("<|channel|>commentary<|message|>", "<|end|>"),
    trigger="<|channel|>commentary to=functions.",
    signature=("<|channel|>commentary", "functions."),
    model_types=("gpt_oss",),
)
