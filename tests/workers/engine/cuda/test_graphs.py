"""Captures through mocks of torch's: what is run, where results go, what a failure leaves."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from workers.engine.cuda.graphs import DecodeGraphs
from workers.engine.cuda.inputs import COLUMNS

HERE = torch.device("cpu")
VOCABULARY = 5


class Device:
    """What torch.cuda does for a capture, as far as its callers see."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stream, self.side_stream = Mock(device_index=3), Mock()
        self.current = self.stream
        self.serving_pool = False
        self.sync_mode = "default"
        self.fails_at: int | None = None
        self.captured: list[Mock] = []
        for name, replacement in {
            "device": lambda _device: nullcontext(),
            "graph_pool_handle": lambda: (0, 7),
            "CUDAGraph": Mock,
            "graph": self.graph,
            "current_stream": lambda: self.current,
            "set_stream": lambda stream: setattr(self, "current", stream),
            "get_sync_debug_mode": lambda: self.sync_mode,
            "set_sync_debug_mode": lambda mode: setattr(self, "sync_mode", mode),
        }.items():
            monkeypatch.setattr(torch.cuda, name, replacement)
        monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", self.end_pool, raising=False)

    @contextmanager
    def graph(self, graph: Mock, pool: tuple[int, int], capture_error_mode: str) -> Iterator[None]:
        assert (pool, capture_error_mode) == ((0, 7), "thread_local")
        self.current, self.serving_pool = self.side_stream, True
        yield
        if len(self.captured) == self.fails_at:  # torch then ends neither
            raise RuntimeError("operation not permitted when stream is capturing")
        self.current, self.serving_pool = self.stream, False
        self.captured.append(graph)

    def end_pool(self, device: int, pool: tuple[int, int]) -> None:
        assert (device, pool) == (3, (0, 7))
        self.serving_pool = False


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    return Device(monkeypatch)


class Model:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.runs: list[tuple[int, str]] = []
        self.seen: set[int] = set()

    def __call__(self, table: Tensor) -> Tensor:
        self.runs.append((len(table), self.device.sync_mode))
        self.seen.add(table.data_ptr())
        return torch.full((len(table), VOCABULARY), float(len(table)))


def test_each_size_warms_up_and_is_captured_over_the_same_memory(device: Device) -> None:
    graphs = DecodeGraphs(9, HERE)
    model = Model(device)
    graphs.capture(model)
    sizes = [9, 8, 4, 2, 1]
    modes = ("default", "error", "default")
    assert model.runs == [(size, mode) for size in sizes for mode in modes]
    assert model.seen == {graphs.table.data_ptr()}
    assert len(device.captured) == len(sizes)
    results = {
        graphs.replay(torch.zeros((n, COLUMNS), dtype=torch.int64)).data_ptr() for n in sizes
    }
    assert len(results) == 1, "all graphs write to one output"
    assert device.sync_mode == "default"
    assert (device.current, device.serving_pool) == (device.stream, False)


def test_a_replay_fills_the_table_and_runs_its_graph(device: Device) -> None:
    graphs = DecodeGraphs(4, HERE)
    graphs.capture(Model(device))
    table = torch.arange(2 * COLUMNS).view(2, -1)
    logits = graphs.replay(table)
    assert logits.shape == (2, VOCABULARY)
    assert graphs.table[:2].equal(table)
    by_size = dict(zip((4, 2, 1), device.captured, strict=True))
    by_size[2].replay.assert_called_once_with()
    by_size[4].replay.assert_not_called()


def test_a_model_that_waits_is_not_captured(device: Device) -> None:
    def waits(table: Tensor) -> Tensor:
        if device.sync_mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        return torch.zeros(len(table), VOCABULARY)

    with pytest.raises(RuntimeError, match="synchronizing"):
        DecodeGraphs(4, HERE).capture(waits)
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
        DecodeGraphs(9, HERE).capture(model)
    assert len(device.captured) == fails_at
    assert (device.current, device.serving_pool) == (device.stream, False)
