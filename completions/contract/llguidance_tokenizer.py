"""Builds llguidance's tokenizer from a model's vocabulary."""

import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from llguidance import LLTokenizer, TokenizerWrapper
from tokenizers import Tokenizer

from completions.contract.token_bytes import TokenBytes

_LONGEST = 16
"""Bytes of the longest token that is searched for in a text that the tokenizer cannot write."""


class _PlainTextTokenizer:
    """The attributes that llguidance reads from a wrapped tokenizer.

    Text that spells a special token is encoded as text: given the tokenizer's own file, llguidance
    would force the special token there and then fail on it.
    """

    bos_token_id = None

    def __init__(
        self, tokenizer: Tokenizer, tokens: list[bytes], special_ids: Collection[int], eos_id: int
    ) -> None:
        self.tokens = tokens
        self.special_token_ids = sorted(id for id in special_ids if id < len(tokens))
        self.eos_token_id = eos_id
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        text = text.decode() if isinstance(text, bytes) else text
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        data = text.encode()
        if b"".join(map(self.tokens.__getitem__, ids)) == data:
            return ids
        return self._match_longest(data)

    def _match_longest(self, data: bytes) -> list[int]:
        """Return the longest token at each place. It spells what the tokenizer cannot write: the
        word mark itself, or white space that an added token takes along."""
        ids, end = [], 0
        while end < len(data):
            for length in range(min(_LONGEST, len(data) - end), 0, -1):
                if (id := self._ids.get(data[end : end + length])) is not None:
                    ids.append(id)
                    break
            else:  # a byte without a token: llguidance reports it
                return ids
            end += length
        return ids

    @cached_property
    def _ids(self) -> Mapping[bytes, int]:
        special = frozenset(self.special_token_ids)
        return {token: id for id, token in enumerate(self.tokens) if token and id not in special}


def build(
    read: TokenBytes,
    tokens: list[bytes],
    eos_token_ids: Sequence[int],
    special_ids: Collection[int] | None = None,
) -> LLTokenizer:
    """Return llguidance's tokenizer for a model whose output layer has a row for each of `tokens`.

    `special_ids`, by default the tokenizer's own, are the tokens that no text matches. Raises
    ValueError for a tokenizer whose tokens have no bytes of their own.
    """
    if not read.is_exact:
        raise ValueError("grammars need a tokenizer that decodes bytes or word marks")
    special_ids = read.special_ids if special_ids is None else special_ids
    text_tokenizer = _make_verbatim(read.tokenizer)
    plain = _PlainTextTokenizer(text_tokenizer, tokens, special_ids, eos_token_ids[0])
    return LLTokenizer(
        TokenizerWrapper(plain),
        n_vocab=len(tokens),
        eos_token=list(eos_token_ids),
        slices=_make_slices(),
    )


def _make_slices() -> list[str]:
    """Return token sets for which llguidance computes a part of the mask in advance.

    It uses such a part as a whole where a pattern allows every token of the set: `[a-z ]{400}`
    allows words of up to 14 letters until 14 are left. Otherwise it follows each token letter by
    letter, with one lexer state per count. It recognizes only sets of the form `[class]{m,n}`,
    after a fixed beginning such as a space, with n up to about 15.

    It arranges the sets as a tree, and follows a token once for each set that has it and does not
    apply. So two sets either exclude each other or one contains the other: there are words by
    length, within a length by characters, and texts of up to each length. The sets cost some
    0.3 s and 45 MB for 49,000 tokens.
    """
    spaces, *_ = LLTokenizer.json_slices()
    sets = [spaces]
    for low, high in itertools.pairwise((0, *_LENGTHS)):
        sets += (words.format(low + 1, high) for words in _WORDS)
        sets += (words.format(max(low, 1), high - 1) for words in _WORDS_AFTER_A_SPACE)
        sets += (f"[A-Za-z ]{{{low + 1},{high}}}", f"{_JSON_TEXT}{{1,{high}}}")
    return [*sets, f"{_JSON_TEXT}{{1,30}}", f"{_JSON_TEXT}+"]


_LENGTHS = (5, 9, 14)
"""Characters of the longest words in each group."""
_WORDS = ("[a-z]{{{},{}}}", "[A-Za-z]{{{},{}}}")
_WORDS_AFTER_A_SPACE = (" [a-z]{{{},{}}}", " [A-Za-z]{{{},{}}}")
_JSON_TEXT = r'[^"\\\x00-\x1F\x7F]'
"""A character that a JSON string has without a backslash."""


def _make_verbatim(tokenizer: Tokenizer) -> Tokenizer:
    """Return a copy that encodes text as it stands: no leading space, no other characters in place
    of those given (as Qwen's NFC has), special tokens spelled out."""
    state = json.loads(tokenizer.to_str())
    steps = _iter_steps(state["normalizer"], "normalizers")
    verbatim = [step for step in steps if _is_verbatim(step)]
    state["normalizer"] = {"type": "Sequence", "normalizers": verbatim}
    for step in _iter_steps(state["pre_tokenizer"], "pretokenizers"):
        if step["type"] == "Metaspace":
            step["prepend_scheme"] = "never"
    copy = Tokenizer.from_str(json.dumps(state))
    copy.no_truncation()
    copy.no_padding()
    copy.encode_special_tokens = True
    return copy


def _is_verbatim(step: Mapping[str, object]) -> bool:
    """Return whether a normalizer's step only writes bytes or spaces as the vocabulary does."""
    if step["type"] == "Replace":
        return bool(step["pattern"] == {"String": " "})
    return bool(step["type"] == "ByteLevel")


def _iter_steps(step: dict[str, Any] | None, inside: str) -> Iterator[dict[str, object]]:
    """Yield a tokenizer step, or the steps of a sequence and of the sequences nested in it."""
    if step is None:
        return
    if step["type"] != "Sequence":
        yield step
        return
    for each in step[inside]:
        yield from _iter_steps(each, inside)
