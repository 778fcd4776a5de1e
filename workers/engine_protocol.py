"""The part of an engine that the relay uses."""

from collections.abc import Callable
from typing import Protocol

from completions.contract.usage import Usage
from workers.engine.core.output import RequestOutput
from workers.engine.core.request import Request
from workers.engine.stats import EngineStats


class EngineLike(Protocol):
    def start(
        self,
        on_outputs: Callable[[list[RequestOutput]], None],
        on_fatal: Callable[[BaseException], None],
    ) -> None: ...
    def submit(self, request: Request) -> None: ...
    def abort(self, request_id: str) -> Usage | None: ...
    def stop(self) -> None: ...
    def stats(self) -> EngineStats: ...
