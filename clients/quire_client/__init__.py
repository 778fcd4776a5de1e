"""Batches and sessions of a Quire service, from another machine.

    pip install ./clients
    export QUIRE_BASE_URL=https://quire.example.com/v1 QUIRE_API_KEY=sk-...
    quire submit lines.jsonl --wait

In Python, `Quire` has the commands as methods, `AsyncQuire` has them as coroutines, `map` runs one
prompt over many rows, and `sessions` keeps conversations. Anything interrupted resumes where it
stopped: an upload at its next part, a wait with the same batch, a download at its next byte.
"""

from quire_client.clients import AsyncQuire, Quire
from quire_client.command import main
from quire_client.exchange import QuireError
from quire_client.progress import Progress

__all__ = ["AsyncQuire", "Progress", "Quire", "QuireError", "main"]
