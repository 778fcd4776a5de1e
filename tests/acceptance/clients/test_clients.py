"""OpenAI's and Anthropic's clients of Node, OpenAI's agents library, the AI SDK and LiteLLM, with
nothing but a base URL and a key. All but the last are installed by npm and pip into a folder that
git ignores."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.service import MODEL, ROOT, Installation

pytestmark = [pytest.mark.acceptance, pytest.mark.long]

HERE = Path(__file__).parent
FOLDER = ROOT / "var" / "clients"


def install(folder: Path, pins: Path, *command: str) -> None:
    """Run an installer, unless it has succeeded here before with these pins. Skips where there is
    no registry."""
    done = folder / "done"
    if done.exists() and done.read_bytes() == pins.read_bytes():
        return
    folder.mkdir(parents=True, exist_ok=True)
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if ran.returncode:
        pytest.skip(f"{command[0]} cannot install: {ran.stderr[-300:]}")
    shutil.copy(pins, done)


def run(service: Installation, *command: str, **environment: str) -> None:
    ran = subprocess.run(
        [*command, f"{service.url}/v1", service.key, MODEL],
        env={**os.environ, **environment}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert ran.stdout.endswith("done\n"), ran.stdout + ran.stderr


@pytest.mark.parametrize("program", ["node_client.mjs", "messages_client.mjs", "ai_sdk.mjs"])
def test_programs_of_node(service: Installation, program: str) -> None:
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("Node is not installed")
    folder = FOLDER / "node"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, folder)
    install(
        folder, HERE / "package-lock.json", npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"
    )
    shutil.copy(HERE / program, folder)  # modules are looked for beside the program
    run(service, node, str(folder / program))


def test_the_agents_library(service: Installation) -> None:
    folder, packages = FOLDER / "agents", FOLDER / "agents" / "packages"
    pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary=:all:")
    pins = HERE / "requirements.txt"
    install(folder, pins, *pip, "--target", str(packages), "-r", str(pins))
    run(service, sys.executable, str(HERE / "agents_client.py"), PYTHONPATH=str(packages))


def test_litellm(service: Installation) -> None:
    import litellm  # takes seconds, which no other process of the tests needs to spend

    call: dict[str, Any] = {
        "model": f"openai/{MODEL}", "api_base": f"{service.url}/v1", "api_key": service.key,
        "max_output_tokens": 6, "temperature": 0,
    }  # fmt: skip
    whole: Any = litellm.responses(**call, input="Say hello.")
    assert whole.usage.output_tokens == 6
    text = whole.output[0].content[0].text
    events: Any = litellm.responses(**call, input="Say hello.", stream=True)
    kinds = [(event.type, getattr(event, "delta", "")) for event in events]
    assert "".join(delta for kind, delta in kinds if kind == "response.output_text.delta") == text
