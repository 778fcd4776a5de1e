"""The windows that end in a step, wherever chunks are cut and states saved."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from workers.engine.backends.compressed.windows import find_windows
from workers.engine.backends.recurrent.batch import Save, StatePiece

DIM, ROWS, SAVED, LENGTH = 2, 3, 2, 40
CPU = torch.device("cpu")


@given(data=st.data())
def test_each_window_gets_its_tokens(data: st.DataObject) -> None:
    """Of sequences that are computed in chunks of any size, from any saved state. Rings that
    belonged to others have what no window may read."""
    rate = data.draw(st.integers(1, 7))
    reach = rate * data.draw(st.integers(1, 2))
    texts = [_draw_text(row) for row in range(ROWS)]
    done = [0] * ROWS
    rings = torch.full((ROWS + SAVED, reach, DIM), torch.nan)
    saved: dict[int, Tensor] = {}
    for _ in range(data.draw(st.integers(1, 6))):
        if saved and data.draw(st.booleans()):
            row, place = (
                data.draw(st.sampled_from(range(ROWS))),
                data.draw(st.sampled_from([*saved])),
            )
            done[row] = len(saved[place])
            texts[row] = torch.cat([saved[place], texts[row][done[row] :]])
            rings[row] = rings[place]
        pieces, parts = _draw_step(data, texts, done)
        if not pieces:
            continue
        projected = torch.cat(parts)
        windows = find_windows(pieces, rate, reach, CPU)
        tokens = windows.gather(projected, rings)
        windows.keep(projected, rings)
        assert tokens.shape == (len(windows.numbers), reach, DIM)
        _check(tokens, windows.numbers, windows.last, pieces, texts, rate)
        missing = torch.zeros(tokens.shape[:2], dtype=torch.bool)
        missing.view(-1)[windows.missing] = True
        assert torch.equal(missing, tokens.isnan().any(2) | (tokens == 0).all(2))
        for piece in pieces:
            done[piece.row] += piece.size
            for save in piece.saves:
                saved[save.row] = texts[piece.row][: piece.position + save.num_tokens].clone()


def _draw_text(seed: int) -> Tensor:
    return 1 + torch.rand(LENGTH, DIM, generator=torch.Generator().manual_seed(seed))


def _draw_step(
    data: st.DataObject, texts: list[Tensor], done: list[int]
) -> tuple[list[StatePiece], list[Tensor]]:
    pieces: list[StatePiece] = []
    parts: list[Tensor] = []
    free = [ROWS + i for i in range(SAVED)]
    for row in data.draw(st.permutations(range(ROWS))):
        size = data.draw(st.integers(0, min(17, LENGTH - done[row])))
        if not size:
            continue
        saves = []
        if free and data.draw(st.booleans()):
            saves.append(Save(data.draw(st.integers(1, size)), free.pop()))
        pieces.append(StatePiece(row, sum(map(len, parts)), size, done[row], saves))
        parts.append(texts[row][done[row] : done[row] + size])
    return pieces, parts


def _check(
    tokens: Tensor,
    numbers: Tensor,
    last: Tensor,
    pieces: list[StatePiece],
    texts: list[Tensor],
    rate: int,
) -> None:
    """Hold the windows to those of whole texts: all that end in the step, in order."""
    expected = [
        (piece, number)
        for piece in pieces
        for number in range(LENGTH)
        if piece.position < (number + 1) * rate <= piece.position + piece.size
    ]
    assert numbers.tolist() == [number for _, number in expected]
    reach = tokens.shape[1]
    for found, place, (piece, number) in zip(tokens, last.tolist(), expected, strict=True):
        end = (number + 1) * rate
        assert place == piece.start + end - 1 - piece.position
        own = texts[piece.row][max(0, end - reach) : end]
        assert torch.equal(found[reach - len(own) :], own)
        assert not found[: reach - len(own)].any()
