import numpy as np
import torch

from workers.engine.backends.base.transfers import to_device
from workers.engine.backends.cuda.inputs import (
    LENGTH,
    POSITION,
    ROW,
    SLOT,
    TOKEN,
    decode_table,
)


def test_one_copy_keeps_shapes_and_values() -> None:
    arrays = [np.array([1, 2]), np.array([[3, 4, 5], [6, 7, 8]]), np.empty(0, dtype=np.int64)]
    moved = to_device(arrays, torch.device("cpu"))
    for tensor, array in zip(moved, arrays, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)
    assert len({tensor.untyped_storage().data_ptr() for tensor in moved}) == 1


def test_a_decode_table_is_padded_at_the_null_block() -> None:
    positions, slots, rows = np.array([6, 3]), np.array([10, 31]), np.array([5, 2])
    table = decode_table([11, 12], positions, slots, rows, num_rows=4, null_row=8)
    assert table[:, TOKEN].tolist() == [11, 12, 0, 0]
    assert table[:, POSITION].tolist() == [6, 3, 0, 0]
    assert table[:, SLOT].tolist() == [10, 31, 0, 0]
    assert table[:, LENGTH].tolist() == [7, 4, 1, 1]
    assert table[:, ROW].tolist() == [5, 2, 8, 8]
