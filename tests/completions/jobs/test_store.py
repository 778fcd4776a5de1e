"""The names of Redis keys: one list for Python, Lua and ARCHITECTURE.md."""

import re
from pathlib import Path

from completions.jobs.store import SCRIPT_KEYS, Keys, _select_used

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


def test_a_script_has_only_the_shared_definitions_that_it_uses() -> None:
    shared = (
        "local A = 1\n"
        "local function unused(x)\n  return x\nend\n"
        "-- Uses A, not unused.\n"
        "local function one() return A end\n"
        "local B, C = 2, 3\n"
        "local function two() return one() + C end\n"
    )
    script = "-- unused\nreturn two()\n"
    assert _select_used(shared, script) == (
        "local A = 1\n"
        "local function one() return A end\n"
        "local B, C = 2, 3\n"
        "local function two() return one() + C end\n"
        "return two()\n"
    )


def test_shared_scripts_have_definitions_only() -> None:
    for path in (ROOT / "completions/jobs/lua/shared").glob("*.lua"):
        starts = re.findall(r"(?m)^[^\s-].*", path.read_text())
        assert all(line.startswith(("local ", "end", "}")) for line in starts), path
