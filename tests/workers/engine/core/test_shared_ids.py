"""Shared tokens are a list like any other, and are not copied."""

from hypothesis import given
from hypothesis import strategies as st

from completions.contract.job_request import LogprobParams, Task
from completions.contract.sampling import SamplingParams
from workers.engine.core.request import Request
from workers.engine.core.shared_ids import SharedIds
from workers.engine.engine import Engine

IDS = st.lists(st.integers(0, 9), max_size=6)


@given(IDS, IDS, IDS, st.slices(18))
def test_it_is_the_list_of_both(
    shared: list[int], own: list[int], more: list[int], part: slice
) -> None:
    found, expected = SharedIds(tuple(shared), own), [*shared, *own]
    for token_id in more:
        found.append(token_id)
    found.extend(more)
    expected += [*more, *more]
    assert (list(found), found.copy(), len(found)) == (expected, expected, len(expected))
    assert found[part] == expected[part]
    assert [found[i] for i in range(-len(found), len(found))] == expected * 2
    if more:
        assert found.pop() == expected.pop()
        assert found[:] == expected


def test_the_continuations_of_a_prompt_share_its_tokens(engine: Engine) -> None:
    prompt = tuple(range(5, 25))
    state = engine._intake.accept(
        Request(
            (prompt,),
            SamplingParams(max_tokens=0),
            logprobs=(LogprobParams(),),
            task=Task.SCORE,
            continuations=(((4, 5), (6,)),),
            request_id="score",
        )
    )
    for sequence, given_ids in zip(state.sequences, ([4, 5], [6]), strict=True):
        assert isinstance(sequence.token_ids, SharedIds)
        assert sequence.token_ids.shared is prompt
        assert sequence.token_ids[:] == [*prompt, *given_ids]
