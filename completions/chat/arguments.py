"""The arguments of a tool's calls, as a node of a structural tag."""

from completions.chat.tools import Tool
from completions.grammars.structural_tag.json_nodes import JSONNode, json_value


def arguments(tool: Tool, style: str = "json") -> JSONNode:
    """One object: of a strict tool an instance of `parameters`, of another tool any object."""
    if not tool.strict or tool.parameters is None:
        return json_value({"type": "object"}, tool.place, style)
    schema = {"type": "object", **tool.parameters}
    return json_value(schema, f"{tool.place}.function.parameters", style)
