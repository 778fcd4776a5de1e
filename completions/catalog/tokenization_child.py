"""The child process that tokenizes and detokenizes long texts. `tokenization` starts it.

A question is a JSON array of the tokenizer's file, an action, its value, and whether special tokens
are added. An answer is a number and a JSON document: the number of ids and the ids, or 0 and the
text, or -1 and what is wrong.
"""

import secrets
import signal
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import orjson
from tokenizers import Tokenizer

_SECRET = secrets.token_hex(16)
"""What stands for control tokens begins with it, so that no text contains one."""


@lru_cache(maxsize=4)
def load(path: str) -> Tokenizer:
    return _prepare(Tokenizer.from_file(path))


@lru_cache(maxsize=2)
def load_unspellable(path: str, tags: tuple[str, ...]) -> Tokenizer:
    """Return the same tokenizer, but its special tokens and these tags have names that no text
    contains: texts that spell them are ordinary ones."""
    document = orjson.loads(Path(path).read_bytes())
    names = {}
    for token in document["added_tokens"]:
        if token["special"] or token["content"] in tags:
            names[token["content"]] = token["content"] = name_control(token["id"])
    _rename(document["model"], names)
    return _prepare(Tokenizer.from_str(orjson.dumps(document).decode()))


def name_control(id: int) -> str:
    return f"\U000f0000{_SECRET}{id}\U000f0001"


def _prepare(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _rename(model: dict[str, Any], names: Mapping[str, str]) -> None:
    """Give entries of a vocabulary other names. Merges that make one are left out."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(text, text): id for text, id in vocabulary.items()}
    else:
        model["vocab"] = [[names.get(text, text), score] for text, score in vocabulary]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if "merges" in model:
        pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in model["merges"]]
        model["merges"] = [
            pair for pair in pairs if names.keys().isdisjoint([*pair, "".join(pair)])
        ]


def _encode(path: str, text: str, special: bool) -> bytes:
    return _write_ids(load(path), text, special)


def _encode_pieces(path: str, value: Any, special: bool) -> bytes:
    """Answer for a text in pieces: texts, and the ids of control tokens between them."""
    tags, pieces = value
    text = "".join(piece if isinstance(piece, str) else name_control(piece) for piece in pieces)
    return _write_ids(load_unspellable(path, tuple(tags)), text, special)


def _decode(path: str, ids: list[int], special: bool) -> bytes:
    return b"0 %b\n" % orjson.dumps(load(path).decode(ids, skip_special_tokens=special))


def _write_ids(tokenizer: Tokenizer, text: str, special: bool) -> bytes:
    ids = tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids
    return b"%d %b\n" % (len(ids), orjson.dumps(ids))


_ACTIONS: Mapping[str, Callable[[str, Any, bool], bytes]] = {
    "encode": _encode,
    "encode_pieces": _encode_pieces,
    "decode": _decode,
}


def run_request(question: bytes) -> bytes:
    """Return the line that answers a line."""
    path, action, value, special = orjson.loads(question)
    try:
        return _ACTIONS[action](path, value, special)
    except Exception as error:  # noqa: BLE001 - tokenizers raises nothing narrower
        return b"-1 %b\n" % orjson.dumps(str(error))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the service handles Ctrl-C
    for line in sys.stdin.buffer:
        sys.stdout.buffer.write(run_request(line))
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
