"""When the decode kernel is used, and what the log says where it is not."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton has no wheel for this machine")

from tests.workers.engine.backends.cuda.without_gpu.plain_kernels import PlainKernels
from workers.engine.backends.base.cache_probe import AttentionRule
from workers.engine.backends.cuda import (
    chosen_latents,
    fused_kernels,
    kernel_check,
    split_decode,
)
from workers.engine.backends.cuda.attention import attend_gathered
from workers.engine.backends.cuda.fusable import Table
from workers.engine.backends.cuda.kernel_check import (
    why_no_fused_kernels,
    why_no_latent_kernel,
    why_no_split_kernel,
)
from workers.engine.backends.cuda.metadata import PagedMetadata

HERE = torch.device("cpu")


def gathered(query: Tensor, layer: Any, table: Tensor, lengths: Tensor, *rest: Any) -> Tensor:
    max_length, rule, _ = rest
    metadata = PagedMetadata(
        None, lengths, lengths, lengths, lengths, table, 1, max_length, len(query), []  # type: ignore[arg-type]
    )  # fmt: skip
    return attend_gathered(query, layer, metadata, rule)


def mixed(
    query: Tensor, tokens: Tensor, slots: Tensor, rank: int, rule: AttentionRule, _processors: int
) -> Tensor:
    found = tokens[slots.clamp(min=0)]
    scores = (query @ found.transpose(1, 2)).float() * rule.scale
    weights = scores.masked_fill(slots[:, None] < 0, -torch.inf).softmax(-1)
    return weights.to(query.dtype) @ found[..., :rank]


@pytest.fixture(autouse=True)
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 9))
    monkeypatch.setattr(split_decode, "attend", gathered)
    plain = PlainKernels()
    for name in ("normalize", "gate", "rotate", "rotate_to_pages", "store"):
        monkeypatch.setattr(fused_kernels, name, getattr(plain, name))
    monkeypatch.setattr(chosen_latents, "mix", mixed)
    checks = (why_no_split_kernel, why_no_fused_kernels, why_no_latent_kernel)
    for check in checks:
        check.cache_clear()
    yield
    for check in checks:
        check.cache_clear()


def test_a_kernel_that_agrees_is_used() -> None:
    assert why_no_split_kernel(HERE) is None
    assert why_no_latent_kernel(HERE) is None


def test_a_kernel_for_latents_that_takes_tokens_that_are_none_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def first_for_none(query: Tensor, tokens: Tensor, slots: Tensor, *rest: Any) -> Tensor:
        return mixed(query, tokens, slots.clamp(min=0), *rest)

    monkeypatch.setattr(chosen_latents, "mix", first_for_none)
    assert "results are off" in str(why_no_latent_kernel(HERE))
    assert "the kernel for chosen latents is not used on cpu: its results" in caplog.text


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


def test_fused_kernels_that_agree_are_used() -> None:
    assert why_no_fused_kernels(HERE) is None


@pytest.mark.parametrize("errors", [[0.001, torch.nan], [torch.nan, 0.001]])
def test_results_that_are_no_numbers_are_noticed(
    monkeypatch: pytest.MonkeyPatch, errors: list[float]
) -> None:
    monkeypatch.setattr(kernel_check, "_measure_fused_errors", lambda _device: errors)
    assert why_no_fused_kernels(HERE) is not None


@pytest.mark.parametrize("name", ["normalize", "gate"])
def test_one_number_that_is_none_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    right = getattr(fused_kernels, name)

    def wrong(*args: Any) -> Tensor:
        result: Tensor = right(*args)
        result.flatten()[3] = torch.nan
        return result

    monkeypatch.setattr(fused_kernels, name, wrong)
    assert why_no_fused_kernels(HERE) is not None


@pytest.mark.parametrize("name", ["normalize", "gate"])
def test_a_fused_kernel_that_differs_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    right = getattr(fused_kernels, name)
    monkeypatch.setattr(fused_kernels, name, lambda *args: right(*args) + 1)
    assert why_no_fused_kernels(HERE) is not None
    assert "operations are not fused on cpu: its results are off by 1" in caplog.text


def is_weightless(x: Any, added: Any, weight: Any, *_: Any) -> bool:
    return weight is None


def turns_by_halves(heads: Any, tables: Any, rule: Any, *_: Any) -> bool:
    return bool(rule.table == Table.HALF)


def has_other_values(heads: Any, tables: Any, rule: Any, into: Any, value: Any, *_: Any) -> bool:
    return bool(value.shape != heads[1].shape)


@pytest.mark.parametrize(
    ("name", "fails"),
    [
        ("normalize", is_weightless),
        ("rotate_to_pages", turns_by_halves),
        ("rotate_to_pages", has_other_values),
    ],
)
def test_every_kind_of_call_is_tried(
    monkeypatch: pytest.MonkeyPatch, name: str, fails: Any
) -> None:
    right = getattr(fused_kernels, name)

    def sometimes(*args: Any, **options: Any) -> Any:
        if fails(*args):
            raise RuntimeError("ptxas failed")
        return right(*args, **options)

    monkeypatch.setattr(fused_kernels, name, sometimes)
    assert "ptxas failed" in (why_no_fused_kernels(HERE) or "")


@pytest.mark.parametrize("keeps", [True, False])
def test_keys_are_tried_kept_and_not_kept(monkeypatch: pytest.MonkeyPatch, keeps: bool) -> None:
    right = fused_kernels.rotate_to_pages

    def sometimes(*args: Any, **options: Any) -> None:
        if options["keeps"] is keeps:
            raise RuntimeError("ptxas failed")
        right(*args, **options)

    monkeypatch.setattr(fused_kernels, "rotate_to_pages", sometimes)
    assert "ptxas failed" in (why_no_fused_kernels(HERE) or "")


@pytest.mark.parametrize("name", ["rotate", "rotate_to_pages", "store"])
def test_pages_that_are_not_written_are_noticed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(fused_kernels, name, lambda *_args, **_options: None)
    assert why_no_fused_kernels(HERE) is not None
