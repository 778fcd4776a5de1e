from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from workers.engine.backends.cpu.layers.direct_weights import finding_direct_weights


class Model(nn.Module):
    def __init__(self, read: Callable[[nn.Linear, Tensor], Tensor]) -> None:
        super().__init__()
        self.called, self.read = nn.Linear(4, 4), nn.Linear(4, 4)
        self._read = read

    def forward(self, hidden: Tensor) -> Tensor:
        return self._read(self.read, self.called(hidden))


@pytest.mark.parametrize(
    "read",
    [
        lambda linear, hidden: nn.functional.linear(hidden, linear.weight),
        lambda linear, hidden: nn.functional.linear(hidden, weight=linear.weight),
        lambda linear, hidden: hidden @ torch.cat([linear.weight, linear.weight], 1),
        lambda linear, hidden: hidden @ linear.weight.t(),
        lambda linear, hidden: hidden @ linear.weight.T,
        lambda linear, hidden: hidden @ linear.weight.data,
        lambda linear, hidden: linear.forward(hidden),
    ],
)
def test_a_layer_whose_weight_is_computed_with_is_found(
    read: Callable[[nn.Linear, Tensor], Tensor],
) -> None:
    model = Model(read)
    with finding_direct_weights(model) as found:
        model(torch.ones(1, 4))
    assert found == {(Model, "read")}
    assert isinstance(model.read.weight, nn.Parameter)


def test_asking_for_the_type_of_a_weight_is_harmless() -> None:
    model = Model(lambda linear, hidden: linear(hidden.to(linear.weight.dtype)))
    with finding_direct_weights(model) as found:
        model(torch.ones(1, 4))
    assert not found
