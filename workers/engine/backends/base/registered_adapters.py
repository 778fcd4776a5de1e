"""LoRA adapters that are registered while the engine runs: loaded when a request first needs one,
freed once they are retired.

Files are read and checked on a thread of their own, so that no step waits for them. The engine's
thread then adds the adapter between two steps.
"""

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path

from completions.contract.adapters import RETIRED_FILE, compute_digest, read_digest, read_name
from workers.engine.backends.base.lora import Adapters, Deltas
from workers.engine.exceptions import EngineError, NoRoomForAdapter, UnsupportedAdapter

logger = logging.getLogger(__name__)

WATCH_INTERVAL = 2.0
"""Seconds between two checks whether a loaded adapter is retired, or has room for another one."""

Then = Callable[[EngineError | None], None]
"""Called with None, or with the reason why an adapter cannot be used."""


class RegisteredAdapters:
    """The registered adapters of one engine, by their references.

    Only the engine's thread calls the methods; ``post`` runs a call on it. ``list_used`` returns
    the adapters of all live sequences.
    """

    def __init__(
        self,
        adapters: Adapters,
        store: Path,
        max_bytes: int,
        post: Callable[[Callable[[], None]], None],
        list_used: Callable[[], Collection[str]],
    ) -> None:
        self._adapters = adapters
        self._store = store
        self._max_bytes = max_bytes
        self._post = post
        self._list_used = list_used
        self._sizes: dict[str, int] = {}
        """Bytes of the loaded adapters, the least recently used first."""
        self._waiting: dict[str, list[Then]] = {}
        self._starved: list[tuple[int, Callable[[], None]]] = []
        """Bytes that requests wait for, and what tries again to load their adapters."""
        self._reading = threading.Lock()
        """One adapter is read at a time."""
        self._closed = threading.Event()
        self._watcher: threading.Thread | None = None

    @property
    def references(self) -> Sequence[str]:
        """Return what jobs call the adapters that are loaded."""
        return tuple(self._sizes)

    def find_missing(self, references: Sequence[str | None]) -> str | None:
        """Return a registered adapter of a request that is not loaded, if there is one."""
        for reference in references:
            if reference is None or read_digest(reference) is None:
                continue
            if reference not in self._sizes:
                return reference
            self._sizes[reference] = self._sizes.pop(reference)
        return None

    def load(self, reference: str, then: Then) -> None:
        """Load an adapter, then call ``then`` on the engine's thread."""
        if (waiting := self._waiting.get(reference)) is not None:
            waiting.append(then)
            return
        self._waiting[reference] = [then]
        # A thread that ends: OpenMP keeps a pool for each thread that computed (see build.py).
        name = "adapter-reader"
        threading.Thread(target=self._read, args=(reference,), name=name, daemon=True).start()

    def wait_for_room(self, size: int, retry: Callable[[], None]) -> None:
        """Call ``retry`` once so many bytes are free, or held by idle adapters."""
        self._starved.append((size, retry))

    def look(self) -> None:
        """Free what is retired, and try again for requests that there is room for now."""
        self.free_retired()
        used = self._list_used()
        room = self._max_bytes - sum(self._sizes[each] for each in self._sizes if each in used)
        starved, self._starved = self._starved, []
        for size, retry in starved:
            if size <= room:
                retry()
            else:
                self._starved.append((size, retry))

    def free_retired(self) -> None:
        """Free the loaded adapters that are retired and that no sequence uses."""
        for reference in self._list_idle():
            if self._is_retired(reference):
                self._free(reference)

    def close(self) -> None:
        self._closed.set()

    def _read(self, reference: str) -> None:
        result: Deltas | EngineError
        try:
            with self._reading:
                result = self._read_files(reference)
        except UnsupportedAdapter as error:
            result = UnsupportedAdapter(f"The adapter {read_name(reference)!r}: {error}")
        except Exception as error:
            logger.exception("the adapter %s cannot be loaded", reference)
            result = UnsupportedAdapter(
                f"The adapter {read_name(reference)!r} cannot be loaded: {error!r}"
            )
        self._post(partial(self._take, reference, result))

    def _read_files(self, reference: str) -> Deltas:
        digest = read_digest(reference)
        folder = self._store / str(digest)
        try:
            if compute_digest(folder) != digest:
                raise UnsupportedAdapter(f"its files in {folder} have changed; load it again")
        except OSError as error:
            raise UnsupportedAdapter(
                f"its files cannot be read ({error}); workers need the folder where web "
                "processes store them"
            ) from error
        return self._adapters.read(folder)

    def _take(self, reference: str, result: Deltas | EngineError) -> None:
        """Add an adapter that was read, and answer those that wait for it."""
        outcome = result if isinstance(result, EngineError) else self._add(reference, result)
        for then in self._waiting.pop(reference):
            then(outcome)

    def _add(self, reference: str, deltas: Deltas) -> EngineError | None:
        size = sum(delta.num_bytes for delta in deltas.values())
        if size > self._max_bytes:
            return UnsupportedAdapter(
                f"The adapter {read_name(reference)!r} takes {size} bytes of memory; a worker has "
                f"{self._max_bytes} for adapters"
            )
        for idle in self._list_idle():
            if sum(self._sizes.values()) + size > self._max_bytes:
                self._free(idle)
        if (held := sum(self._sizes.values())) + size > self._max_bytes:
            return NoRoomForAdapter(
                f"The adapter {read_name(reference)!r} takes {size} bytes, and those of running "
                f"jobs {held} of {self._max_bytes}; try again later",
                size,
            )
        self._adapters.add(reference, deltas)
        self._sizes[reference] = size
        logger.info("loaded the adapter %s, %d bytes", reference, size)
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="adapters", daemon=True)
            self._watcher.start()
        return None

    def _list_idle(self) -> list[str]:
        used = self._list_used()
        return [reference for reference in self._sizes if reference not in used]

    def _free(self, reference: str) -> None:
        self._adapters.remove(reference)
        del self._sizes[reference]
        logger.info("freed the adapter %s", reference)

    def _watch(self) -> None:
        """Look for retired adapters on a thread of its own: a step must not wait for a disk."""
        while not self._closed.wait(WATCH_INTERVAL):
            if self._starved or any(map(self._is_retired, self.references)):
                self._post(self.look)

    def _is_retired(self, reference: str) -> bool:
        folder = self._store / str(read_digest(reference))
        return (folder / RETIRED_FILE).exists() or not folder.exists()
