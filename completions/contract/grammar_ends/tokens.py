"""The tokens that a search for ends writes."""

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Final, NamedTuple

from llguidance import LLTokenizer

from completions.contract.grammar_ends.samples import iter_samples
from completions.contract.token_bytes import is_text

Way = tuple[int, ...]
"""The ids of tokens that lead to an accepted end; empty where the text may end already."""
_ORDER: Final = b"\"@}]')>;,:0{[( \n1aA-./<=_e&|\\2"
"""Single bytes from the likeliest to lead to an end on; all others follow."""
_NUM_CLOSERS: Final = 12
"""How many of them close something, or are the shortest value."""
_INLINE = re.compile(r"%json\s*(?=\{)")
_DECODER = json.JSONDecoder()
_LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)+)"')
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r"}
_MAX_LITERALS = 32
_MAX_SAMPLES = 16
_MAX_KEPT = 512
"""Bytes of a text whose tokens are kept."""


class GrammarTexts(NamedTuple):
    """Texts that a grammar has."""

    literals: tuple[Way, ...] = ()
    """Tags that free text may have to end with."""
    samples: tuple[Way, ...] = ()
    """The shortest texts of its patterns with the quote behind them, a token for each byte."""
    way: Way = ()
    """From its beginning to an end, if one is known: what is left of it may lead to an end too."""


NO_TEXTS: Final = GrammarTexts()


class EndTokens:
    """The tokens of a model that the search writes."""

    def __init__(
        self,
        tokenizer: LLTokenizer,
        texts: Sequence[bytes],
        special_ids: Iterable[int],
        end_ids: Iterable[int],
    ) -> None:
        self.texts = texts
        self.end_ids = tuple(sorted(set(end_ids)))
        self.special_ids = frozenset(special_ids)
        self._tokenizer = tokenizer
        rank = {byte: place for place, byte in enumerate(_ORDER)}
        self._ranks = [rank.get(byte, len(rank) + byte) for byte in range(256)]
        markers = sorted(self.special_ids.difference(self.end_ids))
        single = [id for id, text in enumerate(texts) if len(text) == 1]
        single = [id for id in single if id not in self.special_ids]
        self.order = (*markers, *sorted(single, key=self.get_rank))
        """What is tried where a grammar allows many tokens."""
        self.order_of_closers = self.order[len(markers) :][:_NUM_CLOSERS]
        self._byte_ids = {texts[id][0]: id for id in reversed(self.order[len(markers) :])}

    def get_rank(self, token_id: int) -> tuple[int, int]:
        """Return a key that sorts tokens by how likely they are to lead to an end."""
        text = self.texts[token_id]
        is_marker = token_id in self.special_ids or not text
        return (-1, token_id) if is_marker else (self._ranks[text[0]], len(text))

    def read_texts(self, grammar: str) -> GrammarTexts:
        """Return what a grammar in llguidance's text format names."""
        return _read_texts(self, grammar)

    def spell(self, path: Iterable[int]) -> bytes:
        """Return a text that two paths share only if they lead to the same place."""
        special, texts = self.special_ids, self.texts
        return b"".join(b"\xff%d;" % id if id in special else texts[id] for id in path)

    def split(self, way: Way) -> Way:
        """Return the tokens of the same text that have one byte each, as far as there are such."""
        return _split(self, way)

    def split_token(self, token_id: int) -> Way:
        """Return the tokens with one byte each of a token's text; itself if there are none."""
        text = b"" if token_id in self.special_ids else self.texts[token_id]
        return self.split_text(text) or (token_id,)

    def split_text(self, text: bytes) -> Way:
        """Return the tokens of a text's bytes; none if a byte has no token."""
        ids = tuple(self._byte_ids.get(byte, -1) for byte in text)
        return () if -1 in ids else ids

    def tokenize(self, text: bytes) -> Way:
        """Return the tokens of a text as the model's tokenizer splits it; none if it is not
        UTF-8."""
        if not is_text(text):
            return ()
        if len(text) > _MAX_KEPT:
            return tuple(self._tokenizer.tokenize_bytes(text))
        return _tokenize(self._tokenizer, text)

    def shorten(self, path: Sequence[int]) -> Way:
        """Return fewer tokens of the same text, if the tokenizer has some."""
        whole: list[int] = []
        run: list[int] = []
        for token_id in (*path, None):
            if token_id is not None and token_id not in self.special_ids:
                run.append(token_id)
                continue
            text = b"".join(self.texts[each] for each in run)
            split = self.tokenize(text)
            whole += split if 0 < len(split) < len(run) else run
            whole += [] if token_id is None else [token_id]
            run = []
        return tuple(whole)


@lru_cache(256)
def _read_texts(tokens: EndTokens, grammar: str) -> GrammarTexts:
    try:
        parts = json.loads(grammar)["grammars"]
    except (ValueError, KeyError, TypeError):
        return NO_TEXTS  # it is one of Lark's syntax, which the engine takes as well
    larks = [part["lark_grammar"] for part in parts if "lark_grammar" in part]
    schemas = [part["json_schema"] for part in parts if "json_schema" in part]
    schemas += (schema for lark in larks for schema in _iter_schemas(lark))
    texts = dict.fromkeys(_unescape(each) for lark in larks for each in _LITERAL.findall(lark))
    literals = (tokens.tokenize(text.encode()) for text in list(texts)[:_MAX_LITERALS])
    samples = dict.fromkeys(sample for schema in schemas for sample in iter_samples(schema))
    split = (tokens.split_text(text) for text in list(samples)[:_MAX_SAMPLES])
    return GrammarTexts(
        tuple(literal for literal in literals if len(literal) > 1),
        tuple(sample for sample in split if len(sample) > 1),
    )


def _iter_schemas(lark: str) -> Iterator[object]:
    """Yield the JSON Schemas that a grammar in Lark's syntax has inline."""
    for match in _INLINE.finditer(lark):
        with suppress(ValueError):
            yield _DECODER.raw_decode(lark, match.end())[0]


@lru_cache(4096)
def _tokenize(tokenizer: LLTokenizer, text: bytes) -> Way:
    return tuple(tokenizer.tokenize_bytes(text))


@lru_cache(1024)
def _split(tokens: EndTokens, way: Way) -> Way:
    return tuple(part for token_id in way for part in tokens.split_token(token_id))


def _unescape(text: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[1]), text)
