"""Tool calls of ERNIE 4.5: JSON between tags, as Hermes writes it, and the answer in tags too."""

from dataclasses import replace

from completions.chat.tool_formats.hermes import FORMAT as HERMES

FORMAT = replace(
    HERMES,
    name="ernie45",
    families="ERNIE 4.5",
    unseen=("<response>\n", "\n</response>", "<response>", "</response>"),
    signature=("<tool_call>", "<response>\\n"),
    model_types=("ernie4_5", "ernie4_5_moe"),
)
