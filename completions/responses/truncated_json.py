"""Where truncated JSON ends."""

import json
import re

_PIECE = re.compile(r'"(?:[^"\\]|\\.)*+"|[{}\[\],"]', re.DOTALL)


def find_path_at_end(text: str) -> list[str | int]:
    """Return the keys and indexes that lead to the value, or the object, in which a JSON text was
    cut off; empty for the text as a whole."""
    path: list[str | int | None] = []  # a key or an index per container; None before a key
    for piece in (match[0] for match in _PIECE.finditer(text)):
        if piece == '"':  # this string does not end
            break
        if piece == "{":
            path.append(None)
        elif piece == "[":
            path.append(0)
        elif not path:  # not JSON
            continue
        elif piece in ("}", "]"):
            path.pop()
            if not path:
                break
        elif piece == ",":
            last = path[-1]
            path[-1] = last + 1 if isinstance(last, int) else None
        elif path[-1] is None:
            path[-1] = _parse_name(piece)
    return [each for each in path if each is not None]


def _parse_name(piece: str) -> str:
    try:
        name = str(json.loads(piece, strict=False))
        name.encode()
    except ValueError:  # an escape that is not valid JSON, or half a surrogate pair
        return piece[1:-1]
    return name
