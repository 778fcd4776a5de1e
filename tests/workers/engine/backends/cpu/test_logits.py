import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.workers.engine.backends.cpu.builds import build
from workers.engine.backends.cpu import logits as native
from workers.engine.backends.cpu.layers.library import load_library
from workers.engine.grammar.mask import GrammarMask

pytestmark = pytest.mark.skipif(load_library() is None, reason="needs the C kernels")


@pytest.fixture(autouse=True, params=["vectors", "avx2"], scope="module")
def _kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    library = build(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "load_library", lambda: library)
        yield


NO_BITS = np.empty((0, 0), dtype=np.int32)


def chosen(logits: Tensor, mask: GrammarMask | None = None) -> tuple[Tensor, Tensor]:
    rows, allowed = (mask.rows, mask.allowed) if mask is not None else ([], NO_BITS)
    result = native.choose(logits, rows, allowed)
    assert result is not None
    return result


@given(data=st.data(), vocabulary=st.integers(1, 200), num_rows=st.integers(1, 5))
def test_it_does_what_a_mask_and_torch_do(
    data: st.DataObject, vocabulary: int, num_rows: int
) -> None:
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    # Few values, so that many are equal.
    values = draw.choice([-math.inf, -3.0, -0.0, 0.0, 1.5, 2.0], size=(num_rows, vocabulary))
    logits = torch.tensor(values, dtype=torch.float32)
    rows = data.draw(st.lists(st.integers(0, num_rows - 1), unique=True).map(sorted))
    words = -(-vocabulary // 32) + 1
    allowed = draw.integers(-(2**31), 2**31, size=(len(rows), words)).astype(np.int32)
    allowed &= draw.integers(-(2**31), 2**31, size=allowed.shape).astype(np.int32)
    mask = GrammarMask(rows, allowed, {})
    expected = logits.clone()
    if rows:
        mask.apply(expected)
    highest, ids = chosen(logits, mask)
    assert torch.equal(logits, expected)
    assert torch.equal(highest, expected.amax(dim=-1))
    assert torch.equal(ids, expected.argmax(dim=-1))


@given(data=st.data(), vocabulary=st.integers(1, 200), num_rows=st.integers(1, 5))
def test_what_a_mask_removes_is_a_share_of_the_softmax(
    data: st.DataObject, vocabulary: int, num_rows: int
) -> None:
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    logits = torch.from_numpy(draw.normal(0, 4, (num_rows, vocabulary)).astype(np.float32))
    logits[draw.random((num_rows, vocabulary)) < 0.1] = -math.inf
    logits[:, draw.integers(vocabulary)] = 9.0
    lines = data.draw(st.permutations(range(num_rows)))
    words = -(-vocabulary // 32) + 1
    allowed = draw.integers(-(2**31), 2**31, size=(num_rows, words)).astype(np.int32)
    rows, before = list(range(num_rows))[::-1], logits.clone()
    found = native.measure_removed(logits, rows, allowed, lines)
    assert found is not None
    assert torch.equal(logits, before)
    for row, line, removed, overruled in zip(rows, lines, *found, strict=True):
        forbidden = GrammarMask([row], allowed[[line]], {}).forbidden[0, :vocabulary]
        shares = logits[row].double().softmax(dim=0)
        assert removed == pytest.approx(float(shares[forbidden].sum()), abs=1e-6)
        assert overruled is bool(forbidden[logits[row].argmax()])


@pytest.mark.parametrize("place", [0, 15, 16, 40])
def test_what_is_no_number_shows_unless_it_is_forbidden(place: int) -> None:
    logits = torch.zeros(2, 41)
    logits[1, place] = math.nan
    highest, _ = chosen(logits.clone())
    assert highest.isnan().tolist() == [False, True]
    allowed = np.full((1, 2), -1, dtype=np.int32)
    allowed.view(np.uint32)[0, place // 32] &= ~np.uint32(1 << place % 32)
    highest, _ = chosen(logits, GrammarMask([1], allowed, {}))
    assert highest.tolist() == [0.0, 0.0]


def test_other_logits_are_left_to_torch() -> None:
    for logits in (torch.zeros(2, 4, dtype=torch.bfloat16), torch.zeros(4, 2).T):
        assert native.choose(logits, [], NO_BITS) is None
        assert native.measure_removed(logits, [], NO_BITS, []) is None
