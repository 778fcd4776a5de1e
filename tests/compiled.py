"""The engine's C code, compiled once for all test runs."""

from pathlib import Path

_FOLDER = Path(__file__).resolve().parent.parent / "var" / "native"


def share(home: Path) -> None:
    """Let an installation in `home` use what was compiled before. Files are named by content."""
    _FOLDER.mkdir(parents=True, exist_ok=True)
    (home / "native").symlink_to(_FOLDER)
