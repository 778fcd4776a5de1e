"""Captures through mocks of torch's: what is run, where results go, what a failure leaves."""

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.workers.engine.backends.cuda.without_gpu.mock_captures import Device
from workers.engine.backends.cuda.graphs import DecodeGraphs
from workers.engine.backends.cuda.inputs import COLUMNS

HERE = torch.device("cpu")
VOCABULARY = 5


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


class Model:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.runs: list[tuple[int, str]] = []
        self.seen: set[tuple[int, int]] = set()

    def __call__(self, table: Tensor, logits_rows: Tensor) -> Tensor:
        self.runs.append((len(table), self.device.sync_mode))
        self.seen.add((table.data_ptr(), logits_rows.data_ptr()))
        return torch.full((len(logits_rows), VOCABULARY), float(len(table)))


def test_each_size_warms_up_and_is_captured_over_the_same_memory(device: Device) -> None:
    graphs = DecodeGraphs(9, 4, HERE)
    model = Model(device)
    graphs.capture(model)
    sizes = [9, 8, 4, 2, 1]
    modes = ("default", "error", "default")
    assert model.runs == [(size, mode) for size in sizes for mode in modes]
    assert model.seen == {(graphs.table.data_ptr(), graphs.logits_rows.data_ptr())}
    assert len(device.captured) == len(sizes)
    results = {
        graphs.replay(torch.zeros((n, COLUMNS), dtype=torch.int64), torch.zeros(1)).data_ptr()
        for n in sizes
    }
    assert len(results) == 1, "all graphs write to one output"
    assert device.sync_mode == "default"
    assert (device.current, device.serving_pool) == (device.stream, False)


def test_what_the_captured_forward_reads_lives_as_long_as_the_graphs(device: Device) -> None:
    graphs = DecodeGraphs(4, 4, HERE)
    rows = torch.arange(4)
    memory = weakref.ref(rows)
    graphs.capture(lambda table, _, rows=rows: rows[: len(table), None].float())  # type: ignore[misc]
    del rows
    assert memory() is not None
    del graphs
    assert memory() is None


def test_a_replay_fills_the_table_and_runs_its_graph(device: Device) -> None:
    graphs = DecodeGraphs(4, 4, HERE)
    graphs.capture(Model(device))
    table = torch.arange(2 * COLUMNS).view(2, -1)
    graphs.logits_rows.fill_(3)
    logits = graphs.replay(table, torch.tensor([1]))
    assert logits.shape == (1, VOCABULARY)
    assert graphs.table[:2].equal(table)
    assert graphs.logits_rows.tolist() == [1, 0, 0, 0], "all are rows of this graph"
    by_size = dict(zip((4, 2, 1), device.captured, strict=True))
    by_size[2].replay.assert_called_once_with()
    by_size[4].replay.assert_not_called()


def test_a_model_that_waits_is_not_captured(device: Device) -> None:
    def waits(table: Tensor, _: Tensor) -> Tensor:
        if device.sync_mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        return torch.zeros(len(table), VOCABULARY)

    with pytest.raises(RuntimeError, match="synchronizing"):
        DecodeGraphs(4, 4, HERE).capture(waits)
    assert not device.captured
    assert device.sync_mode == "default"
    assert (device.current, device.serving_pool) == (device.stream, False)


@pytest.mark.parametrize("fails_at", [0, 2])
def test_a_failed_capture_leaves_streams_and_allocator_as_they_were(
    device: Device, fails_at: int
) -> None:
    device.fails_at = fails_at
    model: Any = Model(device)
    with pytest.raises(RuntimeError, match="capturing"):
        DecodeGraphs(9, 4, HERE).capture(model)
    assert len(device.captured) == fails_at
    assert (device.current, device.serving_pool) == (device.stream, False)
