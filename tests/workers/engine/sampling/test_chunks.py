"""Sums over a vocabulary that have the same bits for any number of rows and threads."""

from collections.abc import Iterator

import pytest
import torch

from workers.engine.sampling.chunks import CHUNK, chunk_sums, split_chunks

VOCABULARIES = [1, 416, 32003, 49152, 151936]


@pytest.fixture(params=[1, 2])
def _threads(request: pytest.FixtureRequest) -> Iterator[None]:
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_a_sum_is_the_same_alone_and_among_others(vocabulary: int) -> None:
    torch.manual_seed(vocabulary)
    rows = torch.rand(33, vocabulary) ** 9
    together = chunk_sums(rows)
    assert together.shape == (33, -(-vocabulary // CHUNK))
    torch.testing.assert_close(together.sum(-1), rows.double().sum(-1))
    for row in range(33):
        assert torch.equal(chunk_sums(rows[row : row + 1]).sum(-1), together.sum(-1)[row : row + 1])


def test_what_is_missing_is_filled_up() -> None:
    chunks = split_chunks(torch.ones(2, CHUNK + 1), filler=-torch.inf)
    assert chunks.shape == (2, 2, CHUNK)
    assert chunks[:, 1, :2].tolist() == [[1, -torch.inf]] * 2
