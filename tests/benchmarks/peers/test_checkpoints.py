import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.peers import checkpoints
from benchmarks.peers.checkpoints import Gguf, OpenVino
from benchmarks.peers.environments import program

EXPORT = """#!/bin/sh
for target; do :; done
mkdir "$target"
echo "$@" > "$target/arguments"
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def exporter(folder: Path, source: str) -> Path:
    path = program(folder, OpenVino("int8").environment, "optimum-cli")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    path.chmod(0o700)
    return path


def test_a_model_is_exported_once_for_each_type_of_weights(tmp_path: Path, model: Path) -> None:
    peers = tmp_path / "peers"
    script = exporter(peers, EXPORT)
    converted = OpenVino("int8").convert(model, peers)
    arguments = (converted / "arguments").read_text().split()
    assert arguments[:2] == ["export", "openvino"]
    assert arguments[arguments.index("--model") + 1] == str(model)
    assert arguments[arguments.index("--weight-format") + 1] == "int8"
    assert OpenVino("fp16").convert(model, peers) != converted
    script.unlink()
    assert OpenVino("int8").convert(model, peers) == converted


def test_a_changed_checkpoint_is_exported_again(tmp_path: Path, model: Path) -> None:
    exporter(tmp_path, EXPORT)
    before = OpenVino("int8").convert(model, tmp_path)
    os.utime(model / "model.safetensors", (1, 1))
    assert OpenVino("int8").convert(model, tmp_path) != before


def test_an_export_that_failed_is_repeated(tmp_path: Path, model: Path) -> None:
    exporter(tmp_path, EXPORT + "exit 3\n")
    with pytest.raises(subprocess.CalledProcessError):
        OpenVino("int8").convert(model, tmp_path)
    exporter(tmp_path, EXPORT)
    assert (OpenVino("int8").convert(model, tmp_path) / "arguments").exists()


def test_a_gguf_file_is_written_once(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[tuple[Path, str]] = []

    def write(folder: Path, target: Path, kind: str) -> None:
        written.append((folder, kind))
        target.touch()

    monkeypatch.setattr(checkpoints.gguf_file, "write", write)
    paths = {Gguf("BF16").convert(model, tmp_path) for _ in range(2)}
    assert written == [(model, "BF16")]
    assert paths.pop().is_file()
    assert not paths
