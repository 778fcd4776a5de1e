"""The names of Redis keys: one list for Python, Lua and ARCHITECTURE.md."""

import re
from pathlib import Path

from completions.jobs.store import SCRIPT_KEYS, Keys

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = [path.read_text() for path in (ROOT / "completions/jobs/lua").rglob("*.lua")]
PYTHON_KEYS = {name for name in vars(Keys) if not name.startswith("_")} - {"prefix", "queue"}


def test_the_scripts_name_no_other_keys() -> None:
    named = {key for text in SCRIPTS for key in re.findall(r"prefix \.\. '(\w+):?'", text)}
    assert set(SCRIPT_KEYS) <= named <= {*SCRIPT_KEYS, *PYTHON_KEYS}
    assert not PYTHON_KEYS & set(SCRIPT_KEYS)


def test_the_architecture_page_lists_every_key() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text()
    table = page.split("## Redis keys")[1].split("\n## ")[0]
    first_column = "".join(line.split("|")[1] for line in table.splitlines() if line[:3] == "| `")
    listed = re.findall(r"`(\w+)(?::[^`]*)?`", first_column)
    assert sorted(listed) == sorted({*PYTHON_KEYS, *SCRIPT_KEYS})


def test_a_key_is_named_as_its_method() -> None:
    keys = Keys("q:")
    for name in PYTHON_KEYS:
        key = getattr(keys, name)
        if callable(key):
            key = key("a", "b") if name in ("rid", "login") else key("a")
        assert re.fullmatch(rf"q:{name}(:a)?(:b)?", key)
