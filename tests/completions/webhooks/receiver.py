"""A server that records what it is sent."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Receiver:
    """`statuses` are the answers to come, then 204; a redirect goes to `/elsewhere`."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    seconds: float = 0.0
    received: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)


@contextmanager
def receiver() -> Iterator[Receiver]:
    state = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            state.received.append((self.path, headers, body))
            time.sleep(state.seconds)
            self.send_response(state.statuses.pop(0) if state.statuses else 204)
            self.send_header("location", "/elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}/hook?from=quire"
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
