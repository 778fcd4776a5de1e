"""Child processes that validate costly constraints. A constraint may kill its child."""

import json
import signal
from dataclasses import asdict

import msgspec

from completions.child_process import ChildProcess, IdleChildren
from completions.grammars.exceptions import GrammarError, GrammarOverloadError, GrammarTimeoutError
from completions.grammars.lengths import LeastTokens
from completions.grammars.limits import Limits
from completions.grammars.tokens import TokenSource
from completions.grammars.validation.examination import ValidationRequest, ValidationResult

CHILD = "completions.grammars.validation.child"
START_SECONDS = 60.0
"""Added to the time for a child's first request: it starts and reads the model's tokens."""


def make_timeout_error(limits: Limits) -> GrammarTimeoutError:
    return GrammarTimeoutError(
        f"checking it took longer than {limits.seconds:g} seconds; send a simpler one"
    )


def make_overload_error() -> GrammarOverloadError:
    return GrammarOverloadError("too many grammars are being checked; retry later")


class Child(ChildProcess):
    """One child process."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        super().__init__(CHILD, json.dumps(asdict(limits)))

    def ask(self, request: ValidationRequest) -> tuple[ValidationResult, float]:
        """Validate a request, and the processor seconds that it took. Errors are in the
        result. Afterwards the child may be dead."""
        line = json.dumps(request.to_json()).encode()
        error: GrammarError
        try:
            answer, spent = self._exchange(line)
            return ValidationResult.from_json(answer), spent
        except TimeoutError:
            error = make_overload_error()
        except (OSError, ValueError):  # it died or its answer was cut off
            error = GrammarError(
                "too complex to check: it takes too much memory or stack; send a simpler one"
            )
        self.close()
        if self.signal == signal.SIGPROF:
            error = make_timeout_error(self._limits)
        error.field = request.constraint.error_path
        return ValidationResult(error=error), self._limits.seconds

    def find_least(
        self, grammar: str, tokens: TokenSource, enough: int
    ) -> tuple[LeastTokens, float]:
        """Return what is known of a validated grammar's shortest text, nothing if that takes too
        long or too much memory, and the processor seconds that it took. Raises
        GrammarOverloadError."""
        question = {"grammar": grammar, "tokens": asdict(tokens), "enough": enough}
        try:
            answer, spent = self._exchange(json.dumps(question).encode())
            return msgspec.convert(answer, LeastTokens), spent
        except TimeoutError:
            self.close()
            raise make_overload_error() from None
        except (OSError, ValueError):
            self.close()
            return LeastTokens(0, None), self._limits.seconds

    def _exchange(self, line: bytes) -> tuple[object, float]:
        """Return the answer to a line, and the processor seconds that it took."""
        seconds = self._limits.patience + (START_SECONDS if self.is_new else 0)
        answer, spent = json.loads(self.exchange(line + b"\n", seconds))
        return answer, spent


class Children(IdleChildren[Child]):
    """The idle children."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(lambda: Child(limits), limits.processes)

    def ask(self, request: ValidationRequest) -> tuple[ValidationResult, float]:
        with self.borrow() as child:
            return child.ask(request)

    def find_least(
        self, grammar: str, tokens: TokenSource, enough: int
    ) -> tuple[LeastTokens, float]:
        with self.borrow() as child:
            return child.find_least(grammar, tokens, enough)
