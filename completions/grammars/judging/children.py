"""Child processes that judge costly constraints. A constraint may kill its child."""

import json
import signal
from dataclasses import asdict

from completions.child_process import ChildProcess, IdleChildren
from completions.grammars.exceptions import GrammarError, GrammarOverloadError, GrammarTimeoutError
from completions.grammars.judging.examination import Question, Verdict
from completions.grammars.limits import Limits

CHILD = "completions.grammars.judging.child"
START_SECONDS = 60.0
"""Added to the time for a child's first question: it starts and reads the model's tokens."""


def too_slow(limits: Limits) -> GrammarTimeoutError:
    return GrammarTimeoutError(
        f"checking it took longer than {limits.seconds:g} seconds; send a simpler one"
    )


def too_busy() -> GrammarOverloadError:
    return GrammarOverloadError("too many grammars are being checked; retry later")


class Child(ChildProcess):
    """One child process."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        super().__init__(CHILD, json.dumps(asdict(limits)))

    def ask(self, question: Question) -> tuple[Verdict, float]:
        """The verdict on a question, and the processor seconds that it took. Errors are in the
        verdict. Afterwards the child may be dead."""
        seconds = self._limits.patience + (START_SECONDS if self.is_new else 0)
        line = json.dumps(question.to_json()).encode() + b"\n"
        error: GrammarError
        try:
            answer = json.loads(self.exchange(line, seconds))
            return Verdict.from_json(answer), answer["seconds"]
        except TimeoutError:
            error = too_busy()
        except (OSError, ValueError):  # it died or its answer was cut off
            error = GrammarError(
                "too complex to check: it takes too much memory or stack; send a simpler one"
            )
        self.close()
        if self.signal == signal.SIGPROF:
            error = too_slow(self._limits)
        error.field = question.constraint.named
        return Verdict(error=error), self._limits.seconds


class Children(IdleChildren[Child]):
    """The idle children."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(lambda: Child(limits), limits.processes)

    def ask(self, question: Question) -> tuple[Verdict, float]:
        with self.borrowed() as child:
            return child.ask(question)
