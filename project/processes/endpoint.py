"""The address that the web server listens on."""

import http.client
import json
import socket
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Endpoint:
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self._reachable}:{self.port}"

    @property
    def _reachable(self) -> str:
        return "127.0.0.1" if self.host in ("", "0.0.0.0") else self.host  # noqa: S104

    def require_free(self) -> None:
        """Raise OSError if a server cannot listen here."""
        family, kind, protocol, _, address = socket.getaddrinfo(
            self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)

    def is_ready(self) -> bool:
        """Return whether /readyz returns 200, which means that a worker serves a model."""
        connection = http.client.HTTPConnection(self._reachable, self.port, timeout=2)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def curl(self, key: str, model: str) -> str:
        """Return a shell command that requests a completion constrained to A or B."""
        body = {
            "model": model,
            "prompt": [1, 4093, 198],
            "max_tokens": 2,
            "temperature": 0,
            "ebnf": 'root ::= "A" | "B"',
        }
        return (
            f"curl {self.url}/v1/completions -H 'Content-Type: application/json' \\\n"
            f'  -H "Authorization: Bearer {key}" \\\n'
            f"  -d '{json.dumps(body)}'"
        )


def free_port(host: str = "127.0.0.1") -> int:
    """Return a TCP port that is free at the moment."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port
