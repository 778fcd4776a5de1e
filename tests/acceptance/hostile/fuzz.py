"""Requests with something broken in them: a body's bytes or values, a grammar, the head, a file.

Each is a function of seed and number, so that one can be sent again alone.
"""

import copy
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.acceptance.hostile.fuzzed_bodies import BODIES, CALL, CHAT, GRAMMARS
from tests.acceptance.service import MODEL

JSON = b"application/json"
FORM = b"multipart/form-data; boundary=b"

PATHS = (
    "/v1/completions/{id}?stream=true&starting_after=2&wait=0.1", "/v1/completions/{id}",
    "/v1/responses/{response}?stream=true&starting_after=2", "/v1/responses/{response}",
    "/v1/responses/{response}/input_items?limit=1&order=asc&after=x", "/v1/conversations/x/items",
    "/v1/conversations/{conversation}/items?limit=2&order=asc&after={item}",
    "/v1/conversations/{conversation}/items/{item}", "/v1/conversations/{conversation}",
    "/v1/completions?limit=3&after=x&order=asc", "/v1/files?purpose=batch&limit=2",
    "/v1/files/{file}/content", "/v1/batches?limit=2&after={batch}", "/v1/batches/{batch}",
    "/v1/sessions?limit=2&order=asc", "/v1/sessions/{session}",
    "/v1/sessions/{session}/trajectory?choice={id}:0", "/v1/models/x",
    "/v1/usage?start_time=1&bucket_width=1d&group_by=model", "/v1/models",
    "/docs", "/admin/login/?next=/", "/healthz", "/metrics?part=web", "/v1/openapi.json",
)  # fmt: skip
HEADERS = (
    b"X-Request-Id", b"Prefer", b"Idempotency-Key", b"If-None-Match", b"Last-Event-ID", b"Accept",
    b"Accept-Encoding", b"Cookie", b"Range", b"Host", b"Origin", b"Authorization", b"Content-Type",
    b"Content-Encoding", b"X-Forwarded-For", b"X-Forwarded-Proto", b"Forwarded", b"Traceparent",
    b"X-HTTP-Method-Override", b"X_Under_Score", b"X-Stainless-Retry-Count", b"Referer",
    b"X-Api-Key", b"Anthropic-Version",
)  # fmt: skip
FRAMING = (b"Content-Length", b"Transfer-Encoding", b"Connection", b"Upgrade", b"Expect")
"""Headers that determine the end of a request. After a wrong one, no answer may come."""
VALUES = (
    b"respond-async, wait=1", b'"a", W/"b"', b"Bearer sk-abc-def-0", b"bytes=0-1", b"3", b"gzip",
    b"application/json; charset=utf-8", b"application/json; charset=base64", b"chunked",
    b"application/json; x*=nosuch''a", FORM, FORM + b"; charset=undefined", b"text/plain; q=2",
    b"100-continue", b"websocket", b"h2c", b"upgrade", b"close", b"9" * 30, b"\xff\xfe", b"",
    b"a" * 5000, b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", b"evil.example:99999",
    b"a=b; csrftoken=" + b"x" * 100, b"for=[::1];proto=https", b"::ffff:1.2.3.4", b"-1", b"%00",
)  # fmt: skip
PIECES = (
    b"null", b"-1", b"1e999", b"[]", b"{}", b'"', b"\\u0000", b"\\ud800", b"true", b"9" * 400,
    b"\x00", b"\xff", b"\\", b"[[[[", b'{"a":{"a":', b"NaN", b"\r\n", b"\xe2\x80\xa8", b"(", b")",
    b"*", b"{1,9}", b"%", b"--b", b"&", b"=", b"/", b"..", b"\xf0\x9f\x98\x80",
)  # fmt: skip
STRANGE: Sequence[Any] = (
    None, True, False, 0, -1, 1, 2, 3, 1.5, -0.0, 1e308, 10**19, 10**30, 2**63, -(2**63) - 1,
    "", "a", "\0",
    "\ud83d\ude00", "a" * 3000, "é\u202e", "../../etc/passwd", "http://127.0.0.1:1/", "{{7*7}}",
    "%s%n", [], [[]], [None], [1, "a"], [-1], [10**9], [True], {}, {"a": {}}, {"": None},
    {"$ref": "#"}, {"type": "nobody"}, {"1": 101}, {"5": "x"}, "auto", "json", MODEL, "*",
)  # fmt: skip
KINDS = ("bytes", "values", "values", "fields", "grammar", "grammar", "head", "path", "file")


@dataclass(frozen=True)
class Fuzzed:
    """One request. If its end is clear by HTTP, it is `whole`, and must be answered."""

    kind: str
    content: bytes
    whole: bool = True


@dataclass(frozen=True)
class Target:
    """The target of the requests."""

    key: str
    fields: Sequence[str]
    """Names of request fields."""
    ids: dict[str, str]
    """Ids of an existing completion (`id`), `file`, `batch`, `session`, `response`, `conversation`
    and of an `item` of that."""


def fuzzed(seed: int, number: int, target: Target) -> Fuzzed:
    dice = random.Random(f"{seed}:{number}")  # noqa: S311 - repeatable, not secret
    kind = dice.choice(KINDS)
    return _MAKERS[kind](dice, target)


def http(
    target: Target, method: bytes, path: bytes, body: bytes,
    content_type: bytes = JSON, headers: bytes = b"",
) -> bytes:  # fmt: skip
    return (
        b"%b %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer %b\r\n"
        b"Content-Type: %b\r\n%bContent-Length: %d\r\n\r\n%b"
        % (method, path, target.key.encode(), content_type, headers, len(body), body)
    )


def mutate(dice: random.Random, data: bytes, most: int = 30) -> bytes:
    """A few bytes changed, taken out, put in or doubled."""
    broken = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 5, most])):
        at = dice.randrange(len(broken) + 1)
        what = dice.randrange(4)
        if what == 0 and at < len(broken):
            broken[at] = dice.randrange(256)
        elif what == 1:
            del broken[at : at + dice.randrange(1, 9)]
        elif what == 2:
            broken[at:at] = dice.choice(PIECES)
        else:
            broken[at:at] = broken[at : at + dice.randrange(1, 40)]
    return bytes(broken)


def _text(dice: random.Random, text: str) -> str:
    """Mutate a text. The result is a text too."""
    return mutate(dice, text.encode("utf-8", "surrogatepass"), 8).decode("utf-8", "replace")


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    found: list[tuple[Any, Any]] = []
    keys = value if isinstance(value, dict) else range(len(value)) if _is_list(value) else ()
    for key in keys:
        found.append((value, key))
        found += _places(value[key])
    return found


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def twisted(dice: random.Random, value: Any) -> Any:
    """A JSON value with some of its parts replaced, mutated, taken out, wrapped or renamed."""
    value = copy.deepcopy(value)
    for _ in range(dice.choice([1, 1, 2, 4])):
        places = _places(value)
        if not places:
            break
        container, key = dice.choice(places)
        what = dice.randrange(7)
        if what == 0 and isinstance(container, dict):
            del container[key]
        elif what == 1 and isinstance(container, dict):
            container[_text(dice, key)] = container.pop(key)
        elif what == 2:
            container[key] = [container[key]] * dice.choice([1, 2, 200])
        elif what == 3:
            for _ in range(dice.choice([1, 3, 70])):
                container[key] = {"a": container[key]}
        elif what == 4 and isinstance(container[key], str):
            container[key] = _text(dice, container[key])
        elif what == 5:
            container[key] = copy.deepcopy(dice.choice(places)[0])
        else:
            container[key] = copy.deepcopy(dice.choice(STRANGE))
    return value


def _dumped(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")


def _choose(dice: random.Random, target: Target) -> tuple[str, dict[str, Any]]:
    """Return a path and a body, with ids of existing objects."""
    path, body = dice.choice(BODIES)
    named = {f"{{{name}}}": each for name, each in target.ids.items()}
    body = {name: named.get(x, x) if isinstance(x, str) else x for name, x in body.items()}
    return path.format(**target.ids), body


def _bytes(dice: random.Random, target: Target) -> Fuzzed:
    path, body = _choose(dice, target)
    return Fuzzed("bytes", http(target, b"POST", path.encode(), mutate(dice, _dumped(body))))


def _values(dice: random.Random, target: Target) -> Fuzzed:
    path, body = _choose(dice, target)
    return Fuzzed("values", http(target, b"POST", path.encode(), _dumped(twisted(dice, body))))


def _fields(dice: random.Random, target: Target) -> Fuzzed:
    """Fields that nobody would send together, with values that nobody would send."""
    path, body = _choose(dice, target)
    chosen = {
        name: dice.choice(STRANGE) for name in dice.sample(target.fields, dice.choice([1, 2]))
    }
    return Fuzzed("fields", http(target, b"POST", path.encode(), _dumped({**body, **chosen})))


def _grammar(dice: random.Random, target: Target) -> Fuzzed:
    field, grammar = dice.choice(GRAMMARS)
    if isinstance(grammar, str):
        grammar = _text(dice, grammar)
    else:
        grammar = twisted(dice, [grammar])[0] if dice.random() < 0.9 else _text(dice, str(grammar))
    path, body = dice.choice(
        [("/v1/completions", {**CALL, "max_tokens": 6}), ("/v1/chat/completions", CHAT),
         ("/v1/grammars/validate", {"model": MODEL})]
    )  # fmt: skip
    return Fuzzed(
        "grammar", http(target, b"POST", path.encode(), _dumped({**body, field: grammar}))
    )


def _head(dice: random.Random, target: Target) -> Fuzzed:
    path, body = _choose(dice, target)
    names = [dice.choice(HEADERS) for _ in range(dice.choice([1, 1, 2, 60]))]
    whole = dice.random() < 0.8
    if not whole:
        names.append(dice.choice(FRAMING))
    lines = b""
    for name in names:
        value = dice.choice(VALUES)
        if dice.random() < 0.5:
            value = mutate(dice, value, 8).translate(None, b"\r\n\0")
        if whole:  # otherwise the server may refuse the head, which is a valid answer
            value = bytes(byte for byte in value if byte >= 0x20 and byte != 0x7F)
        lines += name + b": " + value + b"\r\n"
    request = http(target, b"POST", path.encode(), _dumped(body), JSON, lines)
    if not whole and dice.random() < 0.3:
        request = mutate(dice, request)
    return Fuzzed("head", request, whole)


def _path(dice: random.Random, target: Target) -> Fuzzed:
    path = dice.choice(PATHS).format(**target.ids).encode()
    if dice.random() < 0.8:
        path = b"/" + mutate(dice, path, 4).translate(None, b"\r\n \t\x00\x7f").lstrip(b"/")
    method = dice.choice([b"GET", b"GET", b"GET", b"DELETE", b"POST", b"PUT", b"HEAD", b"OPTIONS"])
    is_kept = b"/items/" not in path  # an item may go
    if method == b"DELETE" and is_kept and any(id.encode() in path for id in target.ids.values()):
        method = b"PATCH"
    return Fuzzed("path", http(target, method, path, b""))


def _file(dice: random.Random, target: Target) -> Fuzzed:
    """An upload whose frame, name or lines are broken. Its lines are batches' requests."""
    lines = []
    for number in range(dice.choice([1, 2, 5])):
        _, body = dice.choice(BODIES[:12])
        line = {"custom_id": f"r{number}", "method": "POST", "url": "/v1/completions"}
        line["body"] = twisted(dice, body) if dice.random() < 0.6 else CALL
        lines.append(_dumped(twisted(dice, line) if dice.random() < 0.2 else line))
    content = b"\n".join(lines)
    if dice.random() < 0.2:
        content = mutate(dice, content)
    name = dice.choice([b"a.jsonl", b"../../a", b'a";b', b"\xff\xfe", b"a" * 300, b"", b"CON"])
    form = (
        b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b\r\n'
        b'Content-Disposition: form-data; name="file"; filename="%b"\r\n'
        b"Content-Type: application/jsonl\r\n\r\n%b\r\n--b--\r\n" % (name, content)
    )
    if dice.random() < 0.4:
        form = mutate(dice, form)
    return Fuzzed("file", http(target, b"POST", b"/v1/files", form, FORM))


_MAKERS: dict[str, Callable[[random.Random, Target], Fuzzed]] = {
    "bytes": _bytes, "values": _values, "fields": _fields, "grammar": _grammar, "head": _head,
    "path": _path, "file": _file,
}  # fmt: skip
