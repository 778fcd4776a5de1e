"""A small tokenizer of each kind of vocabulary."""

import json
from collections.abc import Callable, Mapping

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

END, TOOL = "</s>", "<tool>"


def byte_level() -> Tokenizer:
    """A token for each byte, and for `ab`."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {letter: id for id, letter in enumerate([*letters, "ab"])}
    made = Tokenizer(models.BPE(ids, [("a", "b")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(END), AddedToken(TOOL)])
    made.add_tokens([AddedToken("日本", special=False)])
    return made


def composed() -> Tokenizer:
    """The same over composed characters, as of Qwen."""
    made = byte_level()
    made.normalizer = normalizers.NFC()
    return made


def word_marks(*, prepends: bool = False) -> Tokenizer:
    """Words begin with a mark, bytes that no token covers are `<0xE2>`; as of Llama 2.

    The space in front of a text comes from the normalizer or from the pre-tokenizer.
    """
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁b"]
    pieces += map(chr, range(33, 127))
    ids = {piece: id for id, piece in enumerate(pieces)}
    made = Tokenizer(models.BPE(ids, [("▁", "b")], byte_fallback=True))
    if prepends:
        steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        made.normalizer = normalizers.Sequence(steps)
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    made.add_special_tokens([AddedToken(END), AddedToken(TOOL)])
    made.add_tokens([AddedToken("日本", special=False)])
    return made


def with_gaps(made: Tokenizer, gap: int = 20) -> Tokenizer:
    """The same with the added tokens' ids further up, so that ids exceed the number of tokens."""
    state = json.loads(made.to_str())
    for index, token in enumerate(state["added_tokens"]):
        token["id"] += gap * (index + 1)
        state["model"]["vocab"][token["content"]] = token["id"]
    return Tokenizer.from_str(json.dumps(state))


ALL: Mapping[str, Callable[[], Tokenizer]] = {
    "byte-level": byte_level,
    "byte-level, composed": composed,
    "word marks": word_marks,
    "word marks, prepended": lambda: word_marks(prepends=True),
    "byte-level with gaps": lambda: with_gaps(byte_level()),
    "word marks with gaps": lambda: with_gaps(word_marks()),
}
