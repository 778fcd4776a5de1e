"""The Lua scripts of the job life cycle. `record.py` has the keys and fields that they use."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from redis.exceptions import NoScriptError

from completions.jobs.connection import Line

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
        """Make many calls (name, arguments) in one round trip of a synchronous client.

        Calls may run twice. redis-py's own scripts on a pipeline take another round trip to check
        that the server has them.
        """
        if not self._loaded:
            self._load()
        try:
            return self._send(calls)
        except NoScriptError:  # Redis has restarted
            self._load()
            return self._send(calls)

    async def call_each(self, line: Line, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        """The same on a line of an asynchronous client; a call that fails has its error as reply
        and does not affect the others."""
        commands = [self._command(name, args) for name, args in calls]
        replies = await line.ask_again(commands)
        unknown = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            loads = [("SCRIPT", "LOAD", script.script) for script in self._scripts.values()]
            again = await line.ask_again([*loads, *(commands[i] for i in unknown)])
            for i, reply in zip(unknown, again[len(loads) :], strict=True):
                replies[i] = reply
        return replies

    def _command(self, name: str, args: Sequence[Any]) -> tuple[Any, ...]:
        return ("EVALSHA", self._scripts[name].sha, 1, self._prefix, *args)

    def _load(self) -> None:
        """Load all scripts: if Redis knew only some, a first try would make half of the calls."""
        pipeline = self._client.pipeline(transaction=False)
        for script in self._scripts.values():
            pipeline.script_load(script.script)
        pipeline.execute()
        self._loaded = True

    def _send(self, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        pipeline = self._client.pipeline(transaction=False)
        for name, args in calls:
            pipeline.execute_command(*self._command(name, args))
        replies: list[Any] = pipeline.execute()
        return replies
