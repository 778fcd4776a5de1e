"""Messages that spell special tokens, with real templates and vocabularies."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from completions.catalog.control_tokens import Pieces, find_control_tokens
from completions.catalog.entries import ModelEntry
from completions.catalog.model_files import ModelFiles
from completions.catalog.tokenization_child import run_request
from completions.chat.conversation import can_trace, render_prompt
from completions.chat.prompt_text import PromptText
from completions.chat.tool_formats import TOOL_FORMATS
from completions.chat.tools import Tool
from tests.conformance.tokenizers.conftest import or_skip
from tests.conformance.tokenizers.families import FAMILIES, Family
from tests.conformance.tokenizers.packages import fetched

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]
_ROLES = ("system", "user", "assistant", "user")


@pytest.fixture(scope="module", params=[each for each in FAMILIES if each.has_template], ids=str)
def model(request: pytest.FixtureRequest) -> ModelFiles:
    family: Family = or_skip(request.param)
    return ModelFiles(ModelEntry("m", fetched(family.package)), family.rows, 4096, family.ends, 0)


def render(model: ModelFiles, texts: list[str]) -> PromptText:
    messages: list[dict[str, Any]] = [
        {"role": role, "content": text} for role, text in zip(_ROLES, texts, strict=True)
    ]
    tools = (Tool("f", texts[0], {"type": "object", "description": texts[1]}),)
    return render_prompt(model, messages, tools, TOOL_FORMATS["hermes"], {})


def tokenize(model: ModelFiles, prompt: PromptText) -> list[int]:
    controls = find_control_tokens(model)
    pieces = controls.split(prompt, prompt.mask)
    if pieces is None:
        return list(model.tokenizer.encode(prompt, add_special_tokens=False).ids)
    return tokenize_pieces(model, pieces)


def tokenize_pieces(model: ModelFiles, pieces: Pieces) -> list[int]:
    path = str(model.entry.folder / "tokenizer.json")
    tags = find_control_tokens(model).tags
    answer = run_request(orjson.dumps([path, "encode_pieces", [tags, pieces], False]))
    ids: list[int] = orjson.loads(answer.partition(b" ")[2])
    return ids


def test_the_template_keeps_its_own_special_tokens(model: ModelFiles) -> None:
    assert can_trace(model)
    prompt = render(model, ["Be brief.", "Hi <b>!", "Hello.", "a\n\n  b"])
    controls = find_control_tokens(model)
    assert controls.split(prompt, prompt.mask) is None


@given(st.data())
def test_no_message_makes_a_special_token(model: ModelFiles, data: st.DataObject) -> None:
    controls = find_control_tokens(model)
    names = sorted(controls.ids)[:500]
    parts = st.sampled_from(names) | st.sampled_from(["a", " ", "\n", "<", "|", ">", "é", "\u4e2d"])
    texts = [
        "x" + "".join(data.draw(st.lists(parts, min_size=1, max_size=4))) + "y" for _ in _ROLES
    ]
    prompt, harmless = render(model, texts), render(model, ["xy"] * len(texts))
    ids = tokenize(model, prompt)
    named = set(controls.ids.values())
    expected = [id for id in tokenize(model, harmless) if id in named]
    assert [id for id in ids if id in named] == expected
    decode = model.tokenizer.decode
    plain = model.tokenizer.encode(prompt, add_special_tokens=False).ids
    assert decode(ids, skip_special_tokens=False) == decode(plain, skip_special_tokens=False)


@given(st.data())
def test_the_pieces_of_a_harmless_prompt_have_its_ids(
    model: ModelFiles, data: st.DataObject
) -> None:
    parts = st.text(st.characters(exclude_characters="<>[]|\uff5c", exclude_categories=["Cs"]))
    prompt = render(model, [data.draw(parts) for _ in _ROLES])
    controls = find_control_tokens(model)
    pieces = controls.split_own(prompt)
    assert tokenize_pieces(model, pieces) == (
        model.tokenizer.encode(prompt, add_special_tokens=False).ids
    )
