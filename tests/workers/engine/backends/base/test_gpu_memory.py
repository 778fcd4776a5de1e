import fcntl
import os
import re
import stat
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
import torch
from transformers import LlamaConfig, Qwen3Config

from workers.engine.backends.base.gpu_memory import hold_turn, refuse_too_large, what_remains
from workers.engine.checkpoints.reading.checkpoint import weight_bytes
from workers.engine.core.layer_shape import LayerShape
from workers.engine.exceptions import UnsupportedModel

GPU = torch.device("cuda", 0)
GIB = 2**30


def test_weights_others_and_the_peak_of_a_step_come_off() -> None:
    assert (
        what_remains(free=70 * GIB, total=80 * GIB, step_peak=2 * GIB, utilization=0.9) == 60 * GIB
    )
    assert what_remains(free=1 * GIB, total=80 * GIB, step_peak=0, utilization=0.9) < 0


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _device: (20 * GIB, 24 * GIB))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "NVIDIA L4")
    properties = SimpleNamespace(uuid="abc")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _device: properties)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))


@pytest.mark.usefixtures("card")
def test_what_does_not_fit_is_refused_with_both_figures() -> None:
    refuse_too_large(20 * GIB, "the weights", GPU)
    complaint = r"the weights take 27\.0 GiB, and 20\.0 of the 24\.0 GiB of cuda:0 \(NVIDIA L4\)"
    with pytest.raises(UnsupportedModel, match=complaint):
        refuse_too_large(27 * GIB, "the weights", GPU)


@pytest.mark.usefixtures("card")
def test_one_process_at_a_time_measures_a_gpu(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    entered = threading.Event()

    def load() -> None:
        with hold_turn(GPU):
            entered.set()

    with (tmp_path / "quire-gpu-abc.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        other = threading.Thread(target=load)
        other.start()
        assert not entered.wait(0.1)
    other.join(120)
    assert entered.is_set()
    assert "waiting until another worker" in caplog.text


@pytest.mark.usefixtures("card")
def test_workers_of_other_users_can_take_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "quire-gpu-abc.lock"
    mask = os.umask(0o077)
    try:
        with hold_turn(GPU):
            assert stat.S_IMODE(path.stat().st_mode) == 0o644
    finally:
        os.umask(mask)
    modes: list[str] = []
    opened = Path.open

    def recorded(path: Path, mode: str = "r") -> IO[Any]:
        lock = opened(path, mode)
        modes.append(mode)
        return lock

    monkeypatch.setattr(Path, "open", recorded)
    with hold_turn(GPU):
        assert modes == ["r"]  # nobody may write another user's file


@pytest.mark.usefixtures("card")
def test_a_worker_that_cannot_take_the_lock_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "quire-gpu-abc.lock").mkdir()
    with hold_turn(GPU):
        assert "other workers may load onto cuda:0 at the same time" in caplog.text


def test_processes_on_cpus_do_not_wait(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    with hold_turn(torch.device("cpu")):
        assert not list(tmp_path.iterdir())


DOCUMENT = Path(__file__).parents[5] / "docs" / "gpu.md"
UTILIZATION, STEP_PEAK = 0.9, 2 * GIB


def shape(layers: int, hidden: int, inner: int, heads: int, head_dim: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers, "hidden_size": hidden, "intermediate_size": inner,
        "num_attention_heads": heads, "num_key_value_heads": 8, "head_dim": head_dim,
    }  # fmt: skip


LLAMA, QWEN = {"vocab_size": 128256}, {"vocab_size": 151936}
CONFIGS = {
    "Llama 3.2 1B": LlamaConfig(**shape(16, 2048, 8192, 32, 64), **LLAMA, tie_word_embeddings=True),
    "Qwen3 4B": Qwen3Config(**shape(36, 2560, 9728, 32, 128), **QWEN, tie_word_embeddings=True),
    "Llama 3.1 8B": LlamaConfig(**shape(32, 4096, 14336, 32, 128), **LLAMA),
    "Qwen3 14B": Qwen3Config(**shape(40, 5120, 17408, 40, 128), **QWEN),
    "Qwen3 32B": Qwen3Config(**shape(64, 5120, 25600, 64, 128), **QWEN),
    "Llama 3.3 70B": LlamaConfig(**shape(80, 8192, 28672, 64, 128), **LLAMA),
}


def lines_of_the_document() -> tuple[list[float], dict[str, list[str]]]:
    """The GiB of each card, and the cells of each model's line."""
    text = DOCUMENT.read_text("utf-8")
    [head] = re.findall(r"^\| model \| weights .*$", text, re.MULTILINE)
    cards = [float(size) for size in re.findall(r"\(([\d.]+) GiB\)", head)]
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if " GiB | " in line]
    return cards, {line[0]: line[1:] for line in lines if line[0] != "model"}


@pytest.mark.parametrize("name", CONFIGS)
def test_the_document_computes_as_a_worker_does(name: str) -> None:
    cards, lines = lines_of_the_document()
    assert set(lines) == set(CONFIGS)
    config = CONFIGS[name]
    weights, _ = weight_bytes(config, torch.bfloat16)
    layer = LayerShape(config.num_key_value_heads, config.head_dim, config.head_dim)
    token = config.num_hidden_layers * layer.block_bytes(1, torch.bfloat16)
    shown_weights, shown_token, *shown = lines[name]
    assert shown_weights == f"{weights / GIB:.1f} GiB"
    assert shown_token == f"{token // 1024} KiB"
    for card, cell in zip(cards, shown, strict=True):
        total = int(card * GIB)
        left = what_remains(total - weights, total, STEP_PEAK, UTILIZATION)
        assert cell == (f"{left // token // 1000 * 1000:,}" if left >= token else "-")
