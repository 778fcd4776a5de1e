"""Tool calls of Seed-OSS: a function and its parameters between tags, strings without quotes."""

from dataclasses import replace

from completions.chat.tool_format import ToolFormat
from completions.grammars.structural_tag.literals import PYTHON
from completions.grammars.structural_tag.parameters import STYLES

FORMAT = ToolFormat(
    name="seed_oss",
    families="Seed-OSS",
    call="<seed:tool_call>\n<function={name}>\n{arguments}\n</function>\n</seed:tool_call>",
    arguments=replace(STYLES["qwen_xml"], name="seed_oss", constants=PYTHON.constants),
    separator="\n",
    signature=("<seed:tool_call>",),
    model_types=("seed_oss",),
)
