"""The child process that judges costly constraints: a request per line in, a result per line out;
or a validated grammar, and how short its texts are.

`children` starts it. It may run out of stack, memory or time without harm to the service.
"""

import json
import resource
import signal
import sys
import threading
import time
from dataclasses import asdict
from typing import Any

import msgspec

from completions.contract.llguidance_threads import STACK_BYTES
from completions.grammars.lengths import find_least
from completions.grammars.limits import Limits
from completions.grammars.tokens import TokenSource, load
from completions.grammars.validation.examination import ValidationRequest, validate

MEMORY_BYTES = 2 * 1024 * 1024 * 1024
"""Address space, most of which is never touched."""


def main() -> None:
    limits = Limits(**json.loads(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the service handles Ctrl-C
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    threading.stack_size(STACK_BYTES)
    worker = threading.Thread(target=_serve, args=(limits,))
    worker.start()
    worker.join()


def _serve(limits: Limits) -> None:
    for line in sys.stdin.buffer:
        question = json.loads(line)
        load(msgspec.convert(question["tokens"], TokenSource | None))
        # The kernel ends the process even in native code, and if the parent is gone.
        signal.setitimer(signal.ITIMER_PROF, limits.seconds)
        began = time.process_time()
        answer = _answer(question, limits)
        seconds = time.process_time() - began
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(json.dumps([answer, seconds]).encode() + b"\n")
        sys.stdout.buffer.flush()


def _answer(question: dict[str, Any], limits: Limits) -> object:
    """Validate a request, or find out how short a validated grammar's texts are."""
    if "grammar" not in question:
        return validate(ValidationRequest.from_json(question), limits).to_json()
    source = msgspec.convert(question["tokens"], TokenSource)
    return asdict(find_least(question["grammar"], source, question["enough"]))


if __name__ == "__main__":
    main()
