from benchmarks.peers.workloads import WORKLOADS, Shape


def test_prompts_have_the_lengths_and_the_common_start_of_their_shape() -> None:
    prompts = Shape(3, 20, 4, shared_tokens=15).prompts(1000, seed=6)
    assert [len(prompt) for prompt in prompts] == [20, 20, 20]
    assert len({tuple(prompt[:15]) for prompt in prompts}) == 1
    assert len({tuple(prompt[15:]) for prompt in prompts}) == 3


def test_prompts_of_different_seeds_have_no_common_start() -> None:
    shape = Shape(1, 8, 4, shared_tokens=4)
    (one,), (other,) = shape.prompts(49152, seed=0), shape.prompts(49152, seed=2)
    assert one[0] != other[0]


def test_every_table_has_a_name_of_its_own_and_a_row_for_each_shape() -> None:
    assert len({workload.name for workload in WORKLOADS}) == len(WORKLOADS)
    for workload in WORKLOADS:
        assert len(set(workload.shapes)) == len(workload.shapes) > 0, workload.name


def test_a_row_is_named_by_its_shape() -> None:
    assert str(Shape(4, 1900, 64)) == "4 x 1,900 + 64"
    assert str(Shape(4, 0, 256)) == "4"
