import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workers.engine.core.plan import BatchPlan, Placement, StepPlan

NUMBERS = st.lists(st.integers(0, 2**40), max_size=9)
PLACEMENTS = st.lists(st.builds(Placement, st.integers(0, 300), NUMBERS), max_size=4)


@st.composite
def plans(draw):
    arrays = [np.array(draw(NUMBERS), dtype=np.int64) for _ in range(5)]
    batch = BatchPlan(*arrays, as_graph=draw(st.booleans()), ahead=draw(st.booleans()))
    return StepPlan(draw(NUMBERS), draw(PLACEMENTS), draw(PLACEMENTS), batch)


@given(plans())
def test_a_plan_survives_the_way_to_another_process(plan):
    arrived = StepPlan.from_bytes(plan.to_bytes())
    assert (arrived.tainted, arrived.admitted, arrived.grown) == (
        plan.tainted, plan.admitted, plan.grown
    )  # fmt: skip
    for name in ("slots", "first", "sizes", "token_ids", "logits_rows"):
        sent, got = getattr(plan.batch, name), getattr(arrived.batch, name)
        assert got.dtype == np.int64
        assert got.flags.writeable  # torch wraps it
        assert sent.tolist() == got.tolist(), name
    assert (arrived.batch.as_graph, arrived.batch.ahead) == (plan.batch.as_graph, plan.batch.ahead)
