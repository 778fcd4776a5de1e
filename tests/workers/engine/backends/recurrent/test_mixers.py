"""Modules with states on flat batches, against each sequence by itself."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from workers.engine.backends.base.lora import Adapters
from workers.engine.backends.recurrent.batch import Save, StateBatch, StatePiece
from workers.engine.backends.recurrent.mixers import Mixers, find_mixers
from workers.engine.backends.recurrent.states import StateKey, StateTable, bytes_per_row
from workers.engine.exceptions import UnsupportedModel

WIDTH, KERNEL = 3, 4


class Mixer(nn.Module):
    """A convolution and a sum that decays, with the calls of transformers' own modules. It changes
    the state of a single token in place, as they do."""

    def __init__(self, forgets: bool = False) -> None:
        super().__init__()
        self.taps = torch.tensor([0.1, -0.4, 0.2, 0.7])
        self.forgets = forgets
        self.calls = 0

    def forward(
        self,
        hidden_states: Tensor,
        scales: tuple[Tensor, ...],
        cache_params: Any = None,
        attention_mask: Tensor | None = None,
    ) -> tuple[Tensor, None, Tensor]:
        self.calls += 1
        size = hidden_states.shape[1]
        columns, state = hidden_states.transpose(1, 2), None
        if cache_params is not None:
            state = cache_params.get_recurrent_state(0)
            columns = cache_params.update_conv_state(columns, 0, conv_kernel_size=KERNEL)
        columns = nn.functional.pad(columns, (KERNEL - 1, 0))[..., -(size + KERNEL - 1) :]
        mixed = (columns.unfold(-1, KERNEL, 1) * self.taps).sum(-1).transpose(1, 2)
        if size == 1 and state is not None:
            state.mul_(0.5).add_(mixed[:, 0])
            return state[:, None] * scales[0], None, state
        total = torch.zeros_like(mixed[:, 0]) if state is None or self.forgets else state.clone()
        rows = []
        for i in range(size):
            total = total * 0.5 + mixed[:, i]
            rows.append(total)
        if cache_params is not None:
            cache_params.update_recurrent_state(total, 0)
        return torch.stack(rows, 1) * scales[0], None, total


class Model(nn.Module):
    def __init__(self, forgets: bool = False) -> None:
        super().__init__()
        self.mixer = Mixer(forgets)

    def forward(self, hidden: Tensor, past_key_values: Any = None) -> Tensor:
        scales = (hidden.mean(-1, keepdim=True),)
        output: Tensor = self.mixer(hidden, scales=scales, cache_params=past_key_values)[0]
        return output


def found(model: nn.Module) -> Mixers:
    mixers = find_mixers(model, lambda options: model(torch.randn(1, 2, WIDTH), **options))
    assert mixers is not None
    return mixers


def test_modules_show_themselves_and_the_shapes_of_their_states() -> None:
    model = Model()
    mixers = found(model)
    assert set(mixers.shapes) == {model.mixer}
    shapes = mixers.shapes[model.mixer]
    assert {key: shape.sizes for key, shape in shapes.items()} == {
        StateKey("convolution"): (WIDTH, KERNEL),
        StateKey("recurrence"): (WIDTH,),
    }
    assert bytes_per_row(mixers.shapes) == 4 * WIDTH * (KERNEL + 1)


def test_a_model_without_states_has_no_mixers() -> None:
    class Plain(nn.Module):
        def forward(self, hidden: Tensor, past_key_values: Any = None) -> Tensor:
            key, _ = past_key_values.update(hidden, hidden, 0)
            return torch.as_tensor(key)

    class Looks(nn.Module):
        def forward(self, hidden: Tensor, past_key_values: Any = None) -> Tensor:
            return torch.as_tensor(past_key_values.layers[0].keys)  # the probe has no layers

    def found_in(model: nn.Module) -> Mixers | None:
        return find_mixers(model, lambda options: model(torch.zeros(1, 2), **options))

    assert found_in(Plain()) is None
    assert found_in(Looks()) is None
    assert find_mixers(nn.Linear(1, 1), lambda _: None) is None


def test_states_that_cannot_be_distinguished_are_refused() -> None:
    class Twice(Model):
        def forward(self, hidden: Tensor, past_key_values: Any = None) -> Tensor:
            return super().forward(super().forward(hidden, past_key_values), past_key_values)

    with pytest.raises(UnsupportedModel, match="Mixer runs more than once"):
        found(Twice())


@pytest.mark.parametrize("forgets", [False, True])
@given(data=st.data())
def test_a_flat_batch_computes_what_each_sequence_does(forgets: bool, data: st.DataObject) -> None:
    """With chunks of any size, from any saved state. A module that ``forgets`` cannot continue."""
    num_rows, num_saved = 3, 2
    model = Model(forgets)
    mixers = found(model)
    mixers.continues = not forgets
    mixers.wrap(Adapters())
    table = StateTable(mixers.shapes, num_rows + num_saved)
    draw = torch.Generator().manual_seed(data.draw(st.integers(0, 9)))
    texts = [torch.randn(14, WIDTH, generator=draw) for _ in range(num_rows)]
    expected = [model(text[None])[0] for text in texts]
    done = [0] * num_rows
    saved: dict[int, Tensor] = {}
    for _ in range(data.draw(st.integers(1, 5))):
        row = data.draw(st.integers(0, num_rows - 1))
        if saved and data.draw(st.booleans()):
            place = data.draw(st.sampled_from(sorted(saved)))
            done[row] = len(saved[place])
            texts[row][: done[row]] = saved[place]
            expected[row] = model(texts[row][None])[0]
            table.copy_row(place, row)
        order = data.draw(st.permutations(range(num_rows)))
        free = [num_rows + i for i in range(num_saved)]
        pieces, parts = [], []
        for i in order:
            size = data.draw(st.integers(0, min(5, len(texts[i]) - done[i])))
            if not size:
                continue
            saves = []
            if free and data.draw(st.booleans()):
                saves.append(Save(data.draw(st.integers(1, size)), free.pop()))
            start = sum(len(part) for part in parts)
            pieces.append(StatePiece(i, start, size, done[i], saves))
            parts.append(texts[i][done[i] : done[i] + size])
        if not pieces:
            continue
        with mixers.active(StateBatch(table, pieces, mixers.continues)):
            output = model(torch.cat(parts)[None])[0]
        for piece in pieces:
            wanted = expected[piece.row][done[piece.row] : done[piece.row] + piece.size]
            torch.testing.assert_close(output[piece.start : piece.start + piece.size], wanted)
            for save in piece.saves:
                length = done[piece.row] + save.num_tokens
                saved[save.row] = texts[piece.row][:length].clone()
            done[piece.row] += piece.size


def test_single_tokens_of_many_sequences_are_one_call() -> None:
    model = Model()
    mixers = found(model)
    mixers.wrap(Adapters())
    table = StateTable(mixers.shapes, 8)
    calls = model.mixer.calls
    for position in (0, 1):
        pieces = [StatePiece(row, i, 1, position) for i, row in enumerate((5, 0, 3, 7))]
        with mixers.active(StateBatch(table, pieces, True)):
            model(torch.randn(1, 4, WIDTH))
    assert model.mixer.calls == calls + 2
