"""One shard of an installation's Redis: a client, the names of the keys, and the Lua scripts of the
job life cycle.

The scripts in ``lua/`` use the same names; a test compares them and ARCHITECTURE.md with this
module.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

import redis
import redis.asyncio
from redis.exceptions import NoScriptError

from completions.jobs.connection import DedicatedConnection
from completions.jobs.record import REDIS_NAMES

# Keys --------------------------------------------------------------------------------------------


def _key(name: str) -> Any:
    return property(lambda keys: keys.prefix + name)


def _keys(name: str) -> Callable[..., str]:
    return lambda keys, *parts: ":".join((keys.prefix + name, *map(str, parts)))


@dataclass(frozen=True, slots=True)
class Keys:
    """The names of the Redis keys of one shard, or of what is central; ARCHITECTURE.md says what
    each holds. Scripts build them from the prefix, whose hash tag keeps a shard of a cluster in one
    slot."""

    prefix: str

    open = _key("open")
    bytes = _key("bytes")
    usage = _key("usage")
    workers = _key("workers")
    used = _key("used")
    keys = _key("keys")
    layout = _key("layout")
    storing = _key("storing")
    looked = _key("looked")

    depth = _keys("depth")
    """By class."""
    # By job id.
    job = _keys("job")
    ev = _keys("ev")
    # By the id of a web process.
    web = _keys("web")
    ctl = _keys("ctl")
    # By the id of an engine worker.
    worker = _keys("worker")
    drain = _keys("drain")
    metrics = _keys("metrics")
    shown = _keys("shown")
    attention = _keys("attention")

    rid = _keys("rid")
    """By the id of an API key and the client's own request id."""
    # By the id of an API key.
    limits = _keys("limits")
    busy = _keys("busy")
    lock = _keys("lock")
    login = _keys("login")
    """By kind and digest."""

    def queue(self, name: str) -> str:
        """Return the name of a list of Celery's broker."""
        return f"{self.prefix}{name}"


SCRIPT_KEYS: Final = (
    "served",
    "standby",
    "quarantined",
    "queued",
    "spent",
    "turns",
    "key_turns",
    "waiting",
    "taken",
)
"""Keys, up to their first colon, that only the scripts name."""


# Scripts -----------------------------------------------------------------------------------------

_FOLDER = Path(__file__).parent / "lua"
_SHARED: Final = (
    "keys_and_records", "taking", "fair_queue", "bytes", "limits", "budgets", "ending",
)  # fmt: skip
"""Files that precede every script. Each uses functions of those before it."""
_CLAIMING: Final = {"claim": ("claiming",), "take": ("claiming",)}
"""Files that precede some scripts besides, by script."""


_PAIRS: Final = ", ".join(f"{ours} = {name!r}" for ours, name in REDIS_NAMES.items())
_NAMES: Final = f"local REDIS = {{{_PAIRS}}}\n"
"""The names of fields in Redis, before every script."""


_DEFINITION = re.compile(r"(?m)^local (?:function )?(\w+(?:, \w+)*)")
_COMMENT = re.compile(r"(?m)^ *--.*\n")
_WORD = re.compile(r"\w+")


def _read_script(path: Path) -> str:
    shared = (*_SHARED, *_CLAIMING.get(path.stem, ()))
    texts = [(_FOLDER / "shared" / f"{name}.lua").read_text("utf-8") for name in shared]
    return _select_used(_NAMES + "".join(texts), path.read_text("utf-8"))


def _select_used(shared: str, script: str) -> str:
    """Return a script after those shared definitions that it uses, directly or through others.

    Lua makes all functions of a script anew at each call: all shared ones took 9 of the 11 us of a
    script that does nothing. A definition begins with `local` at the start of a line, and ends
    where the next one begins; the shared files have nothing else at the start of a line.
    """
    shared, script = _COMMENT.sub("", shared), _COMMENT.sub("", script)
    found = list(_DEFINITION.finditer(shared))
    ends = [*(each.start() for each in found[1:]), len(shared)]
    used, kept = set(_WORD.findall(script)), [script]
    for each, end in reversed(list(zip(found, ends, strict=True))):
        if not used.isdisjoint(each[1].split(", ")):
            kept.append(definition := shared[each.start() : end])
            used.update(_WORD.findall(definition))
    return "".join(reversed(kept))


_SCRIPTS: Final = {path.stem: _read_script(path) for path in _FOLDER.glob("*.lua")}

_Client = TypeVar("_Client", bound=redis.Redis | redis.asyncio.Redis)
ScriptCall = tuple[str, Sequence[object]]
"""The name of a script and its arguments."""


class JobStore(Generic[_Client]):
    """What every function on jobs in Redis needs."""

    def __init__(self, client: _Client, prefix: str) -> None:
        self.client = client
        self.keys = Keys(prefix)
        self._loaded = False
        self._scripts: dict[str, Any] = {
            name: client.register_script(script) for name, script in _SCRIPTS.items()
        }

    def call(self, name: str, *args: object) -> Any:
        """Run a script and return its reply; with an asynchronous client, an awaitable of the
        reply."""
        return self._scripts[name](keys=[self.keys.prefix], args=args)

    def call_all(self, calls: Sequence[ScriptCall]) -> list[Any]:
        """Make many calls in one round trip of a synchronous client.

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

    async def call_each(
        self, connection: DedicatedConnection, calls: Sequence[ScriptCall]
    ) -> list[object]:
        """Make many calls in one round trip of an asynchronous client. The reply to a call that
        fails is its error, and the other calls are not affected."""
        commands = [self._command(name, args) for name, args in calls]
        replies = await connection.ask_again(commands)
        unknown = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            loads = [("SCRIPT", "LOAD", script.script) for script in self._scripts.values()]
            again = await connection.ask_again([*loads, *(commands[i] for i in unknown)])
            for i, reply in zip(unknown, again[len(loads) :], strict=True):
                replies[i] = reply
        return replies

    def _command(self, name: str, args: Sequence[object]) -> tuple[object, ...]:
        return ("EVALSHA", self._scripts[name].sha, 1, self.keys.prefix, *args)

    def _load(self) -> None:
        """Load all scripts: if Redis knew only some, a first try would run only some of the
        calls."""
        pipeline = self.client.pipeline(transaction=False)
        for script in self._scripts.values():
            pipeline.script_load(script.script)
        pipeline.execute()
        self._loaded = True

    def _send(self, calls: Sequence[ScriptCall]) -> list[object]:
        pipeline: Any = self.client.pipeline(transaction=False)
        for name, args in calls:
            pipeline.execute_command(*self._command(name, args))
        replies: list[object] = pipeline.execute()
        return replies


SyncStore = JobStore[redis.Redis]
AsyncStore = JobStore[redis.asyncio.Redis]
