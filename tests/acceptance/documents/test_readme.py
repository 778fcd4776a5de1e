"""The examples of README and docs/use.md run here, block by block, against a live installation."""

import json
import re
import subprocess

import pytest

from tests.acceptance.service import ROOT, Installation

README = (ROOT / "README.md").read_text()
EXAMPLES = README + (ROOT / "docs" / "use.md").read_text()
OPERATE = (ROOT / "docs" / "operate.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", EXAMPLES, re.MULTILINE | re.DOTALL)


@pytest.mark.long
@pytest.mark.acceptance
def test_the_python_examples_run(service: Installation, monkeypatch, capsys):
    monkeypatch.setenv("QUIRE_API_KEY", service.key)
    script = "\n".join(blocks("python")).replace("http://localhost:8000", service.url)
    names: dict[str, object] = {}
    exec(compile(script, "README.md", "exec"), names)  # noqa: S102 - our own text
    names["client"].close()
    names["http"].close()
    printed = capsys.readouterr().out
    assert "CompletionUsage" in printed
    assert re.search(r'\{"colour":"(red|green|blue)","number":-?\d+\}', printed)
    assert "True [] False 27" in printed
    unknown = "unknown keyword minimun; did you mean minimum? /properties/number/minimun"
    assert f"False {unknown}" in printed
    assert re.search(r"tool_calls Function\(arguments='\{\"city\":", printed)
    ours, theirs, constrained = re.findall(r"^(\[.*\]) (stop|length)$", printed, re.MULTILINE)
    assert re.fullmatch(r"\[('[AB]'(, )?){4}\]", ours[0])
    assert theirs[0].startswith('[\'{"colour":')
    assert re.fullmatch(r"\['[a-z]{3,8} [0-9]'\]", constrained[0])
    assert re.search(r"^data: .*chat.completion.chunk", printed, re.MULTILINE)
    assert re.search(r"'content': '\{\"colour\":\"(red|green|blue)\"", printed)
    assert "completed" in printed
    assert 'data: {"id":"cmpl-' in printed


@pytest.mark.acceptance
def test_the_curl_example_runs(service: Installation):
    (curl,) = [block for block in blocks("sh") if block.startswith("curl")]
    done = subprocess.run(
        ["sh", "-c", curl.replace("http://localhost:8000", service.url)],
        env={"QUIRE_API_KEY": service.key, "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    shown, given = (json.loads(answer)["choices"] for answer in (blocks("json")[0], done.stdout))
    assert given == shown


def test_every_setting_is_documented():
    settings = (ROOT / "project" / "settings.py").read_text()
    for variable in re.findall(r'(?:env\.\w+|_secret)\(\s*"(\w+)"', settings):
        assert f"`{variable}`" in OPERATE, variable


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 200
