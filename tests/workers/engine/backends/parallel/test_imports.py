import re
from pathlib import Path

ENGINE = Path(__file__).resolve().parents[5] / "workers" / "engine"


def test_processes_talk_to_each_other_in_one_room_only():
    named = re.compile(r"torch\.distributed|torch\._C\._distributed")
    using = {path.parent.name for path in ENGINE.rglob("*.py") if named.search(path.read_text())}
    assert using == {"parallel", "engine"}  # engine/compat.py
