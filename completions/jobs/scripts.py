"""The Lua scripts of the job life cycle; `lua/shared.lua` documents every key and field."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from redis.exceptions import NoScriptError

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
    "served",
)


def _source(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text("utf-8")


class Scripts:
    """The scripts registered with one client, synchronous or asynchronous.

    A call returns the reply, or an awaitable of it.
    """

    def __init__(self, client: Any, prefix: str) -> None:
        shared = "".join(map(_source, _SHARED))
        self._client = client
        self._prefix = prefix
        self._loaded = False
        self._scripts = {name: client.register_script(shared + _source(name)) for name in _NAMES}

    def call(self, name: str, args: Sequence[Any]) -> Any:
        return self._scripts[name](keys=[self._prefix], args=args)

    def call_all(self, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        """Many calls, (name, arguments) each, in one round trip of a synchronous client.

        They must bear being repeated. redis-py's own scripts on a pipeline would first ask, in a
        round trip more, whether the server still has them.
        """
        if not self._loaded:
            self._load()
        try:
            return self._send(calls)
        except NoScriptError:  # Redis was restarted
            self._load()
            return self._send(calls)

    def _load(self) -> None:
        """All of them: were some known and others not, the first try would do half of the calls."""
        pipeline = self._client.pipeline(transaction=False)
        for script in self._scripts.values():
            pipeline.script_load(script.script)
        pipeline.execute()
        self._loaded = True

    def _send(self, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for name, args in calls:
            pipeline.evalsha(self._scripts[name].sha, 1, self._prefix, *args)
        replies: list[Any] = pipeline.execute()
        return replies
