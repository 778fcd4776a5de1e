"""Tool calls of Kimi K3: elements of special tokens, whose arguments name their types."""

from completions.chat.tool_format import ToolFormat
from completions.grammars.structural_tag.parameters import Style

FORMAT = ToolFormat(
    name="kimi_k3",
    families="Kimi K3",
    section=("<|open|>tools<|sep|>", "<|close|>tools<|sep|>"),
    call='<|open|>call tool="{name}" index="{id}"<|sep|>{arguments}<|close|>call<|sep|>',
    arguments=Style(
        "kimi_k3",
        '<|open|>argument key="',
        '" type="{mark}"<|sep|>',
        "<|close|>argument<|sep|>",
        names_types=True,
    ),
    first_id=1,
    think=("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    content=("", "<|open|>response<|sep|>"),
    content_end="<|close|>response<|sep|>",
    unseen=("<|close|>response<|sep|>", "<|close|>message<|sep|>"),
    signature=("<|open|>", "<|close|>", "<|sep|>"),
    model_types=("kimi_k3",),
)
