"""What is installed is what was tested and can be audited: one exact version of each package."""

import re

from tests.acceptance.service import ROOT

LISTS = sorted([*ROOT.glob("requirements*.txt"), ROOT / "constraints.txt"])


def test_every_package_is_pinned_to_one_version():
    pinned: dict[str, str] = {}
    for path in LISTS:
        for line in path.read_text().splitlines():
            if not line.strip() or line.startswith(("#", "-r ", "-c ")):
                continue
            requirement = line.partition(";")[0].strip()  # a marker says where it is installed
            exact = re.fullmatch(r"([\w.-]+)(?:\[[\w,-]+\])?==([\w.!+-]+)", requirement)
            assert exact, f"{path.name}: {line!r} names no exact version"
            name = re.sub(r"[-_.]+", "-", exact[1]).lower()
            assert pinned.setdefault(name, exact[2]) == exact[2], f"{name} has two versions"
    assert len(pinned) > 100
