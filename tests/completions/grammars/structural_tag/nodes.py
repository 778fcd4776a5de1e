"""Structural tags in short, and which texts are in them."""

from collections.abc import Mapping
from typing import Any

from completions.grammars import structural_tag
from completions.grammars.compiler import DEFAULT_COMPILER, Compiler
from completions.grammars.validation.matching import match

ANY_JSON = {"type": "json_schema", "json_schema": {"type": "object"}}


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def free(*excludes: str, **options: Any) -> dict[str, Any]:
    return {"type": "any_text", "excludes": list(excludes), **options}


def tag(begin: Any, content: Any, end: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def sequence(*elements: Any) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def either(*elements: Any) -> dict[str, Any]:
    return {"type": "or", "elements": list(elements)}


def triggered(triggers: list[str], *tags: Any, **options: Any) -> dict[str, Any]:
    return {"type": "triggered_tags", "triggers": triggers, "tags": list(tags), **options}


def wrapped(node: Any) -> dict[str, Any]:
    return {"type": "structural_tag", "format": node}


def verdicts(
    value: Mapping[str, Any] | str, texts: list[str], compiler: Compiler = DEFAULT_COMPILER
) -> list[str]:
    """Those of the texts that are accepted."""
    grammar = structural_tag.translate(value, compiler).grammar
    return [text for text in texts if match(grammar, text, compiler).accepts]
