"""What torch.cuda does for a capture, as far as its callers see."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from unittest.mock import Mock

import pytest
import torch


class Device:
    """A GPU that runs captured operations at once and forgets them."""

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
