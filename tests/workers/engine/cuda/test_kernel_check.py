"""When the decode kernel is used, and what the log says where it is not."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton has no wheel for this machine")

from workers.engine.cuda import kernel_check, split_decode
from workers.engine.cuda.attention import PagedMetadata, attend_gathered
from workers.engine.cuda.kernel_check import why_no_split_kernel

HERE = torch.device("cpu")


def gathered(query: Tensor, layer: Any, table: Tensor, lengths: Tensor, *rest: Any) -> Tensor:
    max_length, rule, _ = rest
    metadata = PagedMetadata(
        None, lengths, lengths, lengths, lengths, table, 1, max_length, len(query), []  # type: ignore[arg-type]
    )  # fmt: skip
    return attend_gathered(query, layer, metadata, rule)


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 9))
    monkeypatch.setattr(split_decode, "attend", gathered)
    why_no_split_kernel.cache_clear()
    yield
    why_no_split_kernel.cache_clear()


def test_a_kernel_that_agrees_is_used() -> None:
    assert why_no_split_kernel(HERE) is None


def test_an_old_gpu_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (7, 5))
    assert why_no_split_kernel(HERE) is not None
    assert "needs compute capability 8.0, this GPU has 7.5" in caplog.text


def test_a_kernel_that_differs_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(split_decode, "attend", lambda *args: gathered(*args) + 0.1)
    assert "off by 1" in (why_no_split_kernel(HERE) or "")
    assert "is not used on cpu: its results are off by 1" in caplog.text


def test_a_kernel_that_does_not_compile_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Tensor:
        raise RuntimeError("Failed to find C compiler")

    monkeypatch.setattr(split_decode, "attend", fail)
    assert "Failed to find C compiler" in (why_no_split_kernel(HERE) or "")


def test_triton_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> float:
        raise ImportError("No module named 'triton'")

    monkeypatch.setattr(kernel_check, "_error", missing)
    assert "No module named 'triton'" in (why_no_split_kernel(HERE) or "")
