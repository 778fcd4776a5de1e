"""The Lua scripts of the job life cycle; `lua/shared.lua` documents every key and field."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

_FOLDER = Path(__file__).parent / "lua"
_SHARED: Final = ("shared", "limits", "budgets", "ending")
_NAMES: Final = (
    "submit",
    "claim",
    "publish",
    "finish",
    "release",
    "cancel",
    "requeue",
    "reconcile",
    "seed",
)


def _source(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text("utf-8")


class Scripts:
    """The scripts registered with one client, synchronous or asynchronous.

    A call returns the reply, an awaitable of it, or nothing when it is queued on `pipeline`.
    """

    def __init__(self, client: Any, prefix: str) -> None:
        shared = "".join(map(_source, _SHARED))
        self._prefix = prefix
        self._scripts = {name: client.register_script(shared + _source(name)) for name in _NAMES}

    def call(self, name: str, args: Sequence[Any], pipeline: Any = None) -> Any:
        return self._scripts[name](keys=[self._prefix], args=args, client=pipeline)
