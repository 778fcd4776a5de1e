"""The project's settings over a home of this test run alone; no server answers there."""

import atexit
import os
import shutil
import tempfile
from pathlib import Path

from tests import compiled

_home = tempfile.mkdtemp(prefix="quire-tests-")
compiled.share(Path(_home))
atexit.register(shutil.rmtree, _home, ignore_errors=True)
os.environ["QUIRE_HOME"] = _home
for _variable in ("DATABASE_URL", "REDIS_URL", "QUIRE_MODELS"):
    os.environ.pop(_variable, None)

from project.settings import *  # noqa: E402, F403

for _talkative in ("httpx", "httpx2"):
    LOGGING["loggers"][_talkative] = {"level": "WARNING"}  # noqa: F405

# PBKDF2 takes half a second for each user that a test creates; no test is about passwords.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
