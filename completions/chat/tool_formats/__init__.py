"""The formats in which models write tool calls: a module each, under the format's name in
models.toml, which defines `FORMAT`."""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from completions.chat.tool_format import ToolFormat


def _load_formats() -> dict[str, ToolFormat]:
    modules = [import_module(f"{__name__}.{info.name}") for info in iter_modules(__path__)]
    return {module.FORMAT.name: module.FORMAT for module in modules}


TOOL_FORMATS: Final[Mapping[str, ToolFormat]] = _load_formats()
