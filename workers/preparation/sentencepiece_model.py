"""Reads a SentencePiece model without its package, and converts it to the form of tokenizers.

The file is a protocol buffer, https://github.com/google/sentencepiece/blob/master/src/
sentencepiece_model.proto; transformers builds the tokenizer, as it does for GGUF files.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tokenizers import AddedToken, Tokenizer, pre_tokenizers
from tokenizers.processors import TemplateProcessing

_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
"""Fields of the model."""
_TEXT, _SCORE, _TYPE = 1, 2, 3
"""Fields of a piece."""
_NORMAL = 1
_MODEL_TYPE, _UNIGRAM, _BPE = 3, 1, 2
_CHARACTER_MAP, _DUMMY_PREFIX = 2, 3
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Kinds of fields, https://protobuf.dev/programming-guides/encoding."""
_ARCHITECTURES = {"gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3", "phi3": "phi3"}


@dataclass
class _Model:
    pieces: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    types: list[int] = field(default_factory=list)
    model_type: int = _UNIGRAM
    has_character_map: bool = False
    has_prefix: bool = True


def convert(data: bytes, config: Mapping[str, object], settings: Mapping[str, object]) -> Tokenizer:
    """Convert the tokenizer of a model in BPE. ``config`` is that of the model, ``settings`` those
    in tokenizer_config.json. Raises ValueError for other kinds of models and damaged files."""
    model = _read(data)
    if model.model_type != _BPE or model.has_character_map:
        raise ValueError("only BPE without a normalization of its own can be converted")
    from transformers.integrations.gguf.gguf_tokenizer_mapping import convert_gguf_tokenizer

    family = str(config.get("model_type")).removesuffix("_text")
    tokenizer, _ = convert_gguf_tokenizer(
        _ARCHITECTURES.get(family, "llama"),
        {
            "tokenizer_type": "llama",
            "tokens": model.pieces,
            "scores": model.scores,
            "token_type": model.types,
        },
    )
    if isinstance(tokenizer.pre_tokenizer, pre_tokenizers.Metaspace) and not model.has_prefix:
        tokenizer.pre_tokenizer.prepend_scheme = "never"
    _add_tokens(tokenizer, settings)
    begin = _content(settings.get("bos_token"), "<s>")
    begin_id = tokenizer.token_to_id(begin)
    if settings.get("add_bos_token", True) and begin_id is not None:
        tokenizer.post_processor = TemplateProcessing(
            single=f"{begin} $A",
            pair=f"{begin} $A {begin} $B",
            special_tokens=[(begin, begin_id)],
        )
    return tokenizer


def _add_tokens(tokenizer: Tokenizer, settings: Mapping[str, Any]) -> None:
    """Add the tokens that a fine-tuned model has beyond the pieces."""
    listed = (settings.get("added_tokens_decoder") or {}).items()
    for id, token in sorted((int(id), token) for id, token in listed):
        added = AddedToken(
            _content(token, ""), normalized=False, special=bool(token.get("special"))
        )
        tokenizer.add_tokens([added])
        if tokenizer.token_to_id(added.content) != id:
            raise ValueError(f"{added.content} has the id {id} in tokenizer_config.json only")


def _content(token: object, default: str) -> str:
    return str(token.get("content", default) if isinstance(token, dict) else token or default)


def _read(data: bytes) -> _Model:
    model = _Model()
    for number, value in _fields(data):
        if number == _PIECES:
            piece = dict(_fields(value))
            model.pieces.append(piece[_TEXT].decode())
            model.scores.append(struct.unpack("<f", piece.get(_SCORE, bytes(4)))[0])
            model.types.append(piece.get(_TYPE, _NORMAL))
        elif number == _TRAINER:
            model.model_type = dict(_fields(value)).get(_MODEL_TYPE, _UNIGRAM)
        elif number == _NORMALIZER:
            rules = dict(_fields(value))
            model.has_character_map = bool(rules.get(_CHARACTER_MAP))
            model.has_prefix = bool(rules.get(_DUMMY_PREFIX, True))
    if not model.pieces:
        raise ValueError("it holds no pieces")
    return model


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Parse the fields of a message by number: integers, or bytes. Raises ValueError for data that
    is cut off."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        if kind == _VARINT:
            value, place = _varint(data, place)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, place = _varint(data, place)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError("it is no SentencePiece model")
        if place + size > len(data):
            raise ValueError("it is cut off: fetch it again")
        yield key >> 3, data[place : place + size]
        place += size


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Parse the integer at a position. Returns it and the position after it."""
    value = shift = 0
    while place < len(data):
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
    raise ValueError("it is cut off: fetch it again")
