"""The keywords that drafts of JSON Schema read differently."""

import re
from collections.abc import Mapping

from completions.grammars.schema.keywords import KEYWORDS, LATEST

_DRAFT = re.compile(r"https?://json-schema\.org/draft-0([3-7])/schema#?")
_BESIDE_A_REFERENCE = frozenset(("$ref", "$schema", "$id", "id", "$defs", "definitions", "$anchor"))


def detect_draft(root: Mapping[str, object]) -> int:
    """Return the number of the draft that a schema names; without one it is the latest."""
    match = _DRAFT.fullmatch(str(root.get("$schema", "")))
    return int(match[1]) if match else LATEST


def find_without_effect(schema: Mapping[str, object], draft: int) -> dict[str, str]:
    """Return the keywords of a schema that its draft ignores, with the reason."""
    keywords = {
        keyword: f"{keyword} has no effect in draft-0{draft}"
        for keyword in schema
        if keyword in KEYWORDS and KEYWORDS[keyword].since > draft
    }
    if draft < LATEST and isinstance(schema.get("$ref"), str):
        for keyword in schema.keys() - _BESIDE_A_REFERENCE:
            keywords[keyword] = f"{keyword} has no effect beside $ref in draft-0{draft}"
    return keywords
