"""uvicorn's WebSocket protocol (RFC 6455) for connections of the API.

- A message may have as many bytes as a body. Nothing is compressed: what a client sends cannot take
  more memory than it has bytes.
- A client that does not answer pings stays connected: some answer only while they read, and run
  tools meanwhile. TCP notices one that is gone.
- At shutdown, the application is told (`SHUTDOWN`), and closes the connection after the response
  that runs; uvicorn would cut that.

tests/project/server/test_library_internals.py names the internals that it relies on.
"""

import asyncio
import logging
from typing import Any, Final

from django.conf import settings
from uvicorn.config import Config
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from uvicorn.server import ServerState

SHUTDOWN: Final = "quire.shutdown"
"""The type of the message that the application receives when the server begins to stop."""
CLOSE_SECONDS: Final = 2.0
"""Seconds in which a client answers the end of the connection."""

# uvicorn logs each connection and, for those that end badly, what the access log says too.
_logger = logging.getLogger("quire.web_sockets")
_logger.setLevel(logging.WARNING)


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """One connection, from the end of its head."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        config.ws_max_size = settings.MAX_BODY_BYTES
        config.ws_per_message_deflate = False
        config.ws_ping_timeout = None
        super().__init__(config, server_state, app_state, _loop)
        self.logger = self.conn.logger = _logger
        self.close_timeout = CLOSE_SECONDS

    def shutdown(self) -> None:
        if self.handshake_complete and not self.close_sent:
            message: Any = {"type": SHUTDOWN}
            self.queue.put_nowait(message)
        else:
            super().shutdown()
