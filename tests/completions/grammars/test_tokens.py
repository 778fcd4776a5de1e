"""Special tokens, ends of sequence and padding: the demo model's tokenizer with padded rows."""

from pathlib import Path

import pytest
from llguidance import LLMatcher
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from completions.grammars import Constraint, TokenSource, translate
from completions.grammars.compiler import Compiler
from completions.grammars.tokens import TokenTable, load

DEMO = Path("var/models/smollm2-135m-instruct/tokenizer.json")
PADDED_TO = 49_200
ENDS = (2, 0)


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    if not DEMO.exists():
        pytest.skip("the demo model is not there: run make models")
    return Compiler(TokenSource(str(DEMO), PADDED_TO, ENDS))


def sentencepiece(*, prepends: bool) -> Tokenizer:
    """Words begin with a mark, other bytes are tokens of their own; as of Llama 2 in two ways."""
    pieces = [
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "▁b",
        *map(chr, range(33, 127)),
    ]
    merges = [("▁", "b")]
    made = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, merges, byte_fallback=True)
    )
    if prepends:
        made.normalizer = normalizers.Sequence(
            [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        )
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
    made.add_special_tokens([AddedToken(text) for text in ("</s>", "<tool>")])
    return made


def allowed(matcher: LLMatcher) -> set[int]:
    mask = matcher.compute_bitmask()
    return {8 * i + bit for i, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1}


def matcher(compiler: Compiler, field: str, value: object) -> LLMatcher:
    grammar = translate(Constraint(field, value), compiler).grammar
    return LLMatcher(load(compiler.tokens), grammar, log_level=0)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("ebnf", 'root ::= "<|im_end|>"', "<|im_end|>"),
        ("regex", r"<\|im_end\|>", "<|im_end|>"),
        ("json_schema", {"const": "<|im_end|>"}, '"<|im_end|>"'),
        ("json_schema", {"enum": ["<|endoftext|>"]}, '"<|endoftext|>"'),
        (
            "json_schema",
            {
                "type": "object",
                "properties": {"<|im_start|>": {"const": 1}},
                "required": ["<|im_start|>"],
                "additionalProperties": False,
            },
            '{"<|im_start|>":1}',
        ),
        ("grammar", {"type": "lark", "value": 'start: "<filename>"'}, "<filename>"),
        (
            "structural_tag",
            {"format": {"type": "const_string", "value": "<|im_end|>"}},
            "<|im_end|>",
        ),
    ],
)
def test_text_that_spells_a_special_token_is_text(
    field: str, value: object, text: str, compiler: Compiler
) -> None:
    """It is forced, cut as plain text, and consumed to the end."""
    following = matcher(compiler, field, value)
    tokenizer = load(compiler.tokens)
    forced: list[int] = []
    while not following.is_stopped():
        ids = following.compute_ff_tokens() or sorted(allowed(following))[-1:]
        assert following.consume_tokens(ids), following.get_error()
        forced += ids
    assert not following.is_error()
    assert tokenizer.decode_bytes(forced).decode() == text
    assert not any(tokenizer.is_special_token(id) for id in forced)


@pytest.mark.parametrize("prepends", [True, False])
def test_words_that_begin_with_a_mark(tmp_path: Path, prepends: bool) -> None:
    made = sentencepiece(prepends=prepends)
    made.save(str(tmp_path / "tokenizer.json"))
    end = made.token_to_id("</s>")
    size = made.get_vocab_size() + 4
    words = Compiler(TokenSource(str(tmp_path / "tokenizer.json"), size, (end,)))
    for text in ("<tool>", "</s>a b", "a b é"):
        following = matcher(words, "ebnf", f'root ::= "{text}"')
        forced: list[int] = []
        while not following.is_stopped():
            ids = following.compute_ff_tokens() or sorted(allowed(following))[-1:]
            assert following.consume_tokens(ids), following.get_error()
            forced += ids
        assert load(words.tokens).decode_bytes(forced).decode() == text
        assert set(forced).isdisjoint((end, made.token_to_id("<tool>")))
    assert forced[1] == made.token_to_id("▁b")
    free = allowed(matcher(words, "regex", "(?s:.*)"))
    assert end in free
    assert not free & {made.token_to_id("<tool>"), *range(size - 4, size)}


def test_every_end_is_allowed_where_the_text_may_end(compiler: Compiler) -> None:
    following = matcher(compiler, "regex", "a+")
    assert allowed(following).isdisjoint(ENDS)
    following.consume_tokens(load(compiler.tokens).tokenize_str("a"))
    assert set(ENDS) <= allowed(following)


def test_neither_special_tokens_nor_padding_are_text(compiler: Compiler) -> None:
    ids = allowed(matcher(compiler, "regex", "(?s:.*)"))
    special = {id for id in range(17) if load(compiler.tokens).is_special_token(id)}
    assert len(special) > 10
    assert ids & special == set(ENDS)
    assert max(ids) < 49_152


def test_ranges_of_tokens_leave_out_ends_and_gaps() -> None:
    ids = {"a": 0, "b": 1, "c": 3, "</s>": 4, "d": 5}
    table = TokenTable(ids, frozenset(ids.values()), eos_token_ids=frozenset([4]))
    assert table.list_others([]) == [(0, 1), (3, 3), (5, 5)]
    assert table.list_others([0, 5]) == [(1, 1), (3, 3)]
