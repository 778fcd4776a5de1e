"""An echoed prompt and its completion: one text, wherever the prompt ends."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.contract.usage import Usage
from completions.jobs.events import ChoiceEvent, EndEvent
from completions.responses import token_texts
from completions.responses.completion import ResponseContext
from completions.responses.echo import echo_prompts
from completions.responses.token_texts import TokenTexts
from tests.workers.engine import tiny_models
from workers.engine.text.detokenizer import Vocabulary

TOKENIZERS = {
    "byte-level": tiny_models.byte_level_tokenizer(),
    "sentencepiece": tiny_models.sentencepiece_tokenizer(),
}
MODELS: dict[str, Any] = {
    name: SimpleNamespace(tokenizer=tokenizer) for name, tokenizer in TOKENIZERS.items()
}
VOCABULARIES = {
    name: Vocabulary(tokenizer, tokenizer.get_vocab_size())
    for name, tokenizer in TOKENIZERS.items()
}
NUM_BYTE_LEVEL = TOKENIZERS["byte-level"].get_vocab_size()
TEXTS = st.text("a \n\u00e9\u20ac\u6771\ufffd\U0001f600", max_size=12)


@pytest.fixture(autouse=True, scope="module")
def _texts() -> Iterator[None]:
    texts = {name: TokenTexts(model) for name, model in MODELS.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_texts, "load_token_texts", texts.__getitem__)
        yield


def answered(
    name: str, prompt: Sequence[int], output: Sequence[int], skip: bool = True
) -> tuple[str, str]:
    """The text of a completion with an echo: whole, and of a stream with an event per token."""
    echoes = echo_prompts(MODELS[name], [prompt], skip)
    view = ResponseContext(
        id="cmpl-1",
        model=name,
        created=1,
        n=1,
        prompt_lengths=[len(prompt)],
        echo=echoes.texts,
        open_ends=echoes.open_ends,
        skip_special_tokens=skip,
    )
    detokenizer = VOCABULARIES[name].detokenizer(prompt, skip)
    pieces = [detokenizer.push(token_id) for token_id in output]
    events = [
        ChoiceEvent(0, [token_id], piece, None, None)
        for i, (token_id, piece) in enumerate(zip(output, pieces, strict=True))
    ]
    events.append(ChoiceEvent(0, [], detokenizer.flush(), "length", None))
    collected, chunks = view.make_collected(), view.make_chunks()
    collected.add(events)
    usage = Usage(1, 1, 0)
    written = [*chunks.make_chunks(events), *chunks.make_end(EndEvent(9, "completed", None, usage))]
    streamed = "".join(chunk["choices"][0]["text"] for _, chunk in written if chunk["choices"])
    return collected.make_response(usage)["choices"][0]["text"], streamed


@given(
    st.lists(st.integers(0, NUM_BYTE_LEVEL - 1), min_size=1, max_size=12),
    st.lists(st.integers(0, NUM_BYTE_LEVEL - 1), max_size=8),
    st.booleans(),
)
def test_any_tokens_make_one_text(prompt: list[int], output: list[int], skip: bool) -> None:
    expected = TOKENIZERS["byte-level"].decode([*prompt, *output], skip_special_tokens=skip)
    assert answered("byte-level", prompt, output, skip) == (expected, expected)


@given(st.sampled_from(sorted(TOKENIZERS)), TEXTS.filter(bool), st.data())
def test_a_text_may_be_cut_anywhere(name: str, text: str, data: st.DataObject) -> None:
    ids = TOKENIZERS[name].encode(text, add_special_tokens=False).ids
    cut = data.draw(st.integers(1, len(ids)))
    expected = TOKENIZERS[name].decode(ids)
    assert answered(name, ids[:cut], ids[cut:]) == (expected, expected)


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", ["\ufffd", "\ufffd\ufffd", "\ufffda", "a\ufffd\u20ac\ufffd"])
def test_the_replacement_character_itself_may_be_cut(name: str, text: str) -> None:
    ids = TOKENIZERS[name].encode(text, add_special_tokens=False).ids
    expected = TOKENIZERS[name].decode(ids)
    for cut in range(1, len(ids) + 1):
        assert answered(name, ids[:cut], ids[cut:]) == (expected, expected)


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("output", ["a", "", "\u20ac", "\ufffd", "\U0001f600"])
def test_another_character_may_begin_with_the_same_bytes(name: str, output: str) -> None:
    tokenizer = TOKENIZERS[name]
    prompt = tokenizer.encode("a\u20ac", add_special_tokens=False).ids[:-1]
    after = tokenizer.encode(f"a{output}", add_special_tokens=False).ids
    ids = after[len(tokenizer.encode("a", add_special_tokens=False).ids) :]
    expected = tokenizer.decode([*prompt, *ids])
    assert answered(name, prompt, ids) == (expected, expected)


def test_special_tokens_are_echoed_if_they_are_not_skipped() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    special = next(i for i, each in tokenizer.get_added_tokens_decoder().items() if each.special)
    spelled = tokenizer.id_to_token(special)
    a = tokenizer.encode("a", add_special_tokens=False).ids
    assert answered("byte-level", [special, *a], a, skip=False)[0] == f"{spelled}aa"
    assert answered("byte-level", [special, *a], a)[0] == "aa"
