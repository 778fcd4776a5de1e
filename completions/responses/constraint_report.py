"""How a constraint shaped a choice, for `meta_info.constraint`."""

import json
import re
from collections.abc import Mapping
from typing import Any

from completions.responses.choice_record import ChoiceRecord

_PIECE = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],"]', re.DOTALL)


def report(record: ChoiceRecord, effect: Mapping[str, float]) -> dict[str, Any]:
    """The object of `meta_info`. Shares and means are over the steps; null if there are none."""
    steps = effect["steps"]
    return {
        "forced_tokens": effect["forced_tokens"],
        "steps": steps,
        "overruled_share": round(effect["overruled"] / steps, 4) if steps else None,
        "removed_mass": round(effect["removed"] / steps, 4) if steps else None,
        "cut_at": pointer_at_end("".join(record.texts))
        if record.finish_reason == "length"
        else None,
    }


def pointer_at_end(text: str) -> str | None:
    """The JSON pointer to the value, or the object, in which a JSON text was cut off; None if the
    text does not begin as an object or an array."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    path: list[str | int | None] = []  # a key or an index per container; None before a key
    for piece in _PIECE.findall(text):
        if piece == '"':  # this string does not end
            break
        if piece == "{":
            path.append(None)
        elif piece == "[":
            path.append(0)
        elif piece in ("}", "]"):
            path.pop()
            if not path:
                return ""
        elif piece == ",":
            last = path[-1]
            path[-1] = last + 1 if isinstance(last, int) else None
        elif path[-1] is None:
            path[-1] = str(json.loads(piece, strict=False))
    written = (str(each).replace("~", "~0").replace("/", "~1") for each in path if each is not None)
    return "".join(f"/{each}" for each in written)
