from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.backends.parallel.division import divide, is_even


@given(st.integers(1, 12), st.integers(1, 8), st.integers(1, 24))
def test_every_head_is_on_one_rank_beside_the_key_head_that_it_reads(kv_heads, group, ranks):
    heads = kv_heads * group
    if ranks > heads:
        with pytest.raises(ValueError, match=f"to {heads} at most"):
            divide(heads, kv_heads, ranks)
        return
    shares = divide(heads, kv_heads, ranks)
    assert len(shares) == ranks
    assert [head for share in shares for head in share.heads] == list(range(heads))
    for share in shares:
        assert share.heads
        assert {head // group for head in share.heads} == set(share.kv_heads)
        if len(share.kv_heads) > 1:  # the groups of a rank's key heads are of one size
            assert len(share.heads) == group * len(share.kv_heads)
    assert {head for share in shares for head in share.kv_heads} == set(range(kv_heads))


@given(st.integers(1, 12), st.integers(1, 8), st.integers(1, 12))
def test_no_rank_holds_more_than_one_key_head_more_than_another(kv_heads, group, ranks):
    if ranks > kv_heads:
        return
    shares = divide(kv_heads * group, kv_heads, ranks)
    sizes = [len(share.kv_heads) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    if is_even(kv_heads * group, kv_heads, ranks):
        assert max(sizes) == min(sizes)


def test_one_key_head_is_on_every_rank():
    shares = divide(8, 1, 4)
    assert [list(share.heads) for share in shares] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert all(share.kv_heads == range(1) for share in shares)


def test_the_demo_model_on_two_ranks():
    first, second = divide(9, 3, 2)
    assert (first.heads, first.kv_heads) == (range(3), range(1))
    assert (second.heads, second.kv_heads) == (range(3, 9), range(1, 3))


@pytest.mark.parametrize(("heads", "kv_heads", "ranks"), [(4, 2, 5), (4, 4, 8), (6, 2, 7)])
def test_more_ranks_than_heads_are_refused(heads, kv_heads, ranks):
    with pytest.raises(ValueError, match=f"{ranks} ranks cannot share {heads} attention heads"):
        divide(heads, kv_heads, ranks)


def test_shares_are_in_order():
    shares = divide(24, 6, 4)
    assert all(a.heads.stop == b.heads.start for a, b in pairwise(shares))
