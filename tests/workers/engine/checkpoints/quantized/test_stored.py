import torch
from torch import Tensor

from workers.engine.checkpoints.quantized.stored import divisible

NUMBERS = torch.arange(12.0).view(4, 3)


class Source:
    def __init__(self) -> None:
        self.reads = 0

    def __getitem__(self, _index: object) -> Tensor:
        self.reads += 1
        return NUMBERS.clone()


def test_a_part_is_cut_from_a_tensor_that_is_read_once() -> None:
    source = Source()
    tensor = divisible({"a": source})["a"]
    assert tensor.get_shape() == [4, 3]  # type: ignore[attr-defined]
    part = tensor[2:, :2]  # type: ignore[misc]
    assert part.equal(NUMBERS[2:, :2])
    assert part.untyped_storage().nbytes() == part.nbytes, "the rest is not kept"
    assert source.reads == 1


def test_only_the_latest_tensor_is_kept() -> None:
    sources = Source(), Source()
    first, second = divisible({"a": sources[0], "b": sources[1]}).values()
    for tensor in (first, second, first):
        assert tensor[...].equal(NUMBERS)
    assert [source.reads for source in sources] == [2, 1]


def test_a_tensor_that_can_be_divided_already_is_left_alone() -> None:
    class Slice(Source):
        def get_shape(self) -> list[int]:
            return [4, 3]

    slice_of_file = Slice()
    assert divisible({"a": slice_of_file})["a"] is slice_of_file
