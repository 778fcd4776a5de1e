import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.sampling.filters import Filter, draw, draw_filtered, draw_ranked

VOCABULARY = 300


def filters(*rows: tuple[int, float, float]) -> Filter:
    top_k, top_p, min_p = zip(*rows, strict=True)
    return Filter(
        torch.tensor(top_k), torch.tensor(top_p, dtype=torch.float64), torch.tensor(min_p)
    )


def kept_slowly(weights: list[float], top_k: int, top_p: float, min_p: float) -> list[int]:
    """The ids that the filters keep, in order, written as the contract reads."""
    order = sorted(range(len(weights)), key=lambda i: (-weights[i], i))
    order = [i for i in order if weights[i] > 0]
    if top_k > 0:
        order = order[:top_k]
    total, before, kept = sum(weights[i] for i in order), 0.0, []
    for i in order:
        if before >= top_p * total:
            break
        kept.append(i)
        before += weights[i]
    return [i for i in kept if weights[i] >= min_p * weights[order[0]]]


def test_the_draw_follows_the_distribution() -> None:
    probabilities = torch.tensor([0.1, 0.0, 0.2, 0.7])
    uniform = torch.linspace(0, 1, 10_001, dtype=torch.float64)[:-1]
    drawn = draw(probabilities.repeat(len(uniform), 1), uniform)
    shares = torch.bincount(drawn, minlength=4) / len(uniform)
    torch.testing.assert_close(shares, probabilities, atol=2e-4, rtol=0)


@given(
    st.lists(st.sampled_from([0.0, 1e-30, 1e-9, 0.1, 1.0]), min_size=1, max_size=400),
    st.floats(0, 1, exclude_max=True),
)
def test_what_has_no_weight_is_never_drawn(weights: list[float], uniform: float) -> None:
    weights[len(weights) // 2] = 1.0
    tensor = torch.tensor([weights])
    numbers = torch.tensor([uniform], dtype=torch.float64)
    assert weights[int(draw(tensor, numbers))] > 0
    off = filters((-1, 1.0, 0.0))
    assert weights[int(draw_filtered(tensor, off, numbers))] > 0


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=VOCABULARY),
    st.integers(-1, 320),
    st.sampled_from([1.0, 0.95, 0.5, 0.1, 1e-6]),
    st.sampled_from([0.0, 0.01, 0.3, 1.0]),
)
def test_filters_keep_what_the_definition_keeps(
    logits: list[int], top_k: int, top_p: float, min_p: float
) -> None:
    weights = (torch.tensor([logits]).float() - max(logits)).mul(0.7).exp()
    expected = kept_slowly(weights[0].double().tolist(), top_k, top_p, min_p)
    uniform = torch.linspace(0, 1, 401, dtype=torch.float64)[:-1]
    drawn = draw_filtered(
        weights.repeat(len(uniform), 1), filters(*[(top_k, top_p, min_p)] * len(uniform)), uniform
    )
    assert set(drawn.tolist()) <= set(expected)
    assert drawn[0] == expected[0]
    heaviest = weights[0, expected].double()
    for token_id, share in zip(expected, heaviest / heaviest.sum(), strict=True):
        assert share < 1 / 350 or token_id in drawn


@given(
    st.lists(
        st.tuples(
            st.integers(-1, 320),
            st.sampled_from([1.0, 0.95, 0.5, 0.1, 1e-6]),
            st.sampled_from([0.0, 0.01, 0.3, 1.0]),
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 2**31),
    st.sampled_from([0.0, 0.3, 3.0, 30.0]),
    st.sampled_from([1, 20, VOCABULARY]),
)
def test_a_draw_that_does_not_wait_finds_the_same_tokens(
    limits: list[tuple[int, float, float]], seed: int, spread: float, distinct: int
) -> None:
    drawn = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(limits), distinct, generator=drawn)
    logits = spread * logits[:, torch.randint(distinct, (VOCABULARY,), generator=drawn)]
    weights = (logits - logits.amax(-1, keepdim=True)).exp()
    uniform = torch.rand(len(limits), dtype=torch.float64, generator=drawn)
    rows = filters(*limits)
    expected = draw_filtered(weights, rows, uniform).tolist()
    assert draw_ranked(weights, rows, uniform, 0).tolist() == expected
    if min(top_k for top_k, _, _ in limits) > 0:
        most = max(top_k for top_k, _, _ in limits)
        assert draw_ranked(weights, rows, uniform, most).tolist() == expected
