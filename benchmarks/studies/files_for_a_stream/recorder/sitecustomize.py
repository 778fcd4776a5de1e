"""Records which of Quire's files run in this process: Python imports this module when it starts.

Once ``$RECORD_FILES/NAME`` exists, the recorder writes the files whose functions were called since
the last such request to ``$RECORD_FILES/NAME.PID``, and begins again.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

FOLDER = Path(os.environ["RECORD_FILES"])
_LOOK_EVERY = 0.1


class Recorder:
    """The code that was called, by file."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._files: set[str] = set()
        self._answered: set[str] = set()

    def note(self, frame: FrameType, _event: str, _argument: Any) -> None:
        """Note a call. Returns nothing, so that the lines of the function are not traced."""
        self._files.add(frame.f_code.co_filename)

    def answer_requests(self) -> None:
        while True:
            time.sleep(_LOOK_EVERY)
            for request in FOLDER.glob("*.request"):
                if request.name not in self._answered:
                    self._answered.add(request.name)
                    files, self._files = self._files, set()
                    ours = sorted(name[len(self._root) :] for name in files if self._is_ours(name))
                    part = FOLDER / f"{request.stem}.part{os.getpid()}"
                    part.write_text(json.dumps(ours))
                    part.rename(FOLDER / f"{request.stem}.{os.getpid()}")

    def _is_ours(self, name: str) -> bool:
        rest = name.removeprefix(self._root)
        return rest != name and rest.partition("/")[0] in ("project", "completions", "workers")


def record() -> None:
    recorder = Recorder(f"{os.getcwd()}/")
    threading.Thread(target=recorder.answer_requests, daemon=True, name="recorder").start()
    threading.settrace(recorder.note)
    sys.settrace(recorder.note)


record()
