"""Texts to token ids and back, without delaying streams of the same process.

`Tokenizer.encode` and `decode` hold the interpreter: a million characters stop the event loop for
one to two seconds. A batch of one text does not, and has the same ids. A long text goes to a child
process, which yields its core to the engine and to streams, and from which ids come as JSON.
"""

import atexit
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from completions.catalog.control_tokens import Pieces, find_control_tokens
from completions.catalog.model_files import ModelFiles
from completions.child_process import ChildProcess, IdleChildren

CHILD = "completions.catalog.tokenization_child"
LONG = 16 * 1024
"""Characters or ids from which a child process does the work."""
SECONDS = 300.0
"""Time for one text. A busy machine favours everything else."""
KEPT = max(2, min(8, os.cpu_count() or 1))
"""Idle children that are kept, one for each thread that checks requests: to start one takes longer
than most texts. Each holds the tokenizers that it has used."""
_TRIES = 2
_PIECE = 16 * 1024
"""Ids read or written at a time, between which other threads run."""


class TokenizationError(Exception):
    """A tokenizer has failed, or its process has."""


class TokenizerProcessError(TokenizationError):
    """A text was not tokenized: its processes were killed, mostly for lack of memory, or took too
    long. A retry may help. The message says which, for the client."""


@dataclass(frozen=True, slots=True)
class TokenIds:
    """The tokens of a text, as JSON: a list of a million ids takes long to make and to write."""

    count: int
    json: bytes

    def to_fragment(self) -> orjson.Fragment:
        """Return the ids within a larger JSON document."""
        return orjson.Fragment(self.json)

    def to_list(self) -> list[int]:
        ids: list[int] = []
        start = 1
        while start < len(self.json) - 1:
            end = self.json.find(b",", start + 8 * _PIECE)
            end = end if end >= 0 else len(self.json) - 1
            ids += orjson.loads(b"[%b]" % self.json[start:end])
            start = end + 1
        return ids


def encode(model: ModelFiles, text: str, special: bool = True) -> TokenIds:
    """Return the tokens of a text. `special` adds the tokenizer's own, such as BOS. Takes about a
    second of processor time for a million characters. Raises TokenizationError."""
    if len(text) > LONG:
        return _encode_in_child(model, text, special)
    ids = _encode_here(model, [text], special)[0]
    return TokenIds(len(ids), orjson.dumps(ids))


def encode_pieces(model: ModelFiles, pieces: Pieces, special: bool) -> TokenIds:
    """Return the tokens of a text whose only control tokens are those among its pieces. A child
    process does it, which has a tokenizer whose control tokens no text spells. Raises
    TokenizationError."""
    value = orjson.dumps([find_control_tokens(model).tags, pieces])
    return TokenIds(*_ask(model, "encode_pieces", value, special))


def encode_all(model: ModelFiles, texts: Sequence[str], special: bool = True) -> list[list[int]]:
    """Return the tokens of several texts. Raises TokenizationError."""
    if sum(map(len, texts)) > LONG:
        return [_encode_in_child(model, text, special).to_list() for text in texts]
    return _encode_here(model, texts, special)


def _encode_here(model: ModelFiles, texts: Sequence[str], special: bool) -> list[list[int]]:
    encodings = model.tokenizer.encode_batch_fast(list(texts), add_special_tokens=special)
    return [encoding.ids for encoding in encodings]


def _encode_in_child(model: ModelFiles, text: str, special: bool) -> TokenIds:
    return TokenIds(*_ask(model, "encode", orjson.dumps(text), special))


def decode(model: ModelFiles, ids: Sequence[int]) -> str:
    """Return the text of tokens, special ones included. Raises TokenizationError."""
    return decode_all(model, [ids], skip_special_tokens=False)[0]


def decode_all(
    model: ModelFiles, prompts: Sequence[Sequence[int]], skip_special_tokens: bool
) -> list[str]:
    """Return the texts of prompts. Raises TokenizationError."""
    if sum(map(len, prompts)) > LONG:
        return [_decode_in_child(model, ids, skip_special_tokens) for ids in prompts]
    id_lists = [list(ids) for ids in prompts]
    return model.tokenizer.decode_batch(id_lists, skip_special_tokens=skip_special_tokens)


def _decode_in_child(model: ModelFiles, ids: Sequence[int], skip_special_tokens: bool) -> str:
    _, text = _ask(model, "decode", _write_ids(ids), skip_special_tokens)
    return str(orjson.loads(text))


def _write_ids(ids: Sequence[int]) -> bytes:
    """Return a JSON array, made of pieces."""
    starts = range(0, len(ids), _PIECE)
    return b"[%b]" % b",".join(orjson.dumps(ids[at : at + _PIECE])[1:-1] for at in starts)


def _ask(model: ModelFiles, action: str, value: bytes, special: bool) -> tuple[int, bytes]:
    path = str(model.entry.folder / "tokenizer.json")
    question = orjson.dumps([path, action, orjson.Fragment(value), special]) + b"\n"
    for _ in range(_TRIES):
        with _get_children().borrow() as child:
            try:
                number, _, document = child.exchange(question, SECONDS).partition(b" ")
            except TimeoutError as error:
                child.close()
                raise TokenizerProcessError(
                    f"A text took longer than {SECONDS:g} s to tokenize: the machine is busy."
                ) from error
            except OSError:  # ended from outside, or for lack of memory
                child.close()
                continue
        if int(number) < 0:
            raise TokenizationError(orjson.loads(document))
        return int(number), document.rstrip()
    raise TokenizerProcessError(
        "The process that tokenizes long texts was killed twice, mostly for lack of memory."
    )


@lru_cache
def _get_children() -> IdleChildren[Any]:
    children = IdleChildren(lambda: ChildProcess(CHILD), KEPT)
    atexit.register(children.close)
    return children
