"""The address that the web server listens on."""

import http.client
import json
import socket
from dataclasses import dataclass

_LOCAL = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
"""By a host that stands for all addresses: one of them that a client can connect to."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    host: str
    port: int

    @property
    def url(self) -> str:
        host = f"[{self._reachable}]" if ":" in self._reachable else self._reachable
        return f"http://{host}:{self.port}"

    @property
    def _reachable(self) -> str:
        return _LOCAL.get(self.host, self.host)

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
        return not self.get_failures()

    def get_failures(self) -> dict[str, str]:
        """Return the reasons, by part, why the service is not ready; empty if it is."""
        connection = http.client.HTTPConnection(self._reachable, self.port, timeout=2)
        try:
            connection.request("GET", "/readyz")
            answer = connection.getresponse()
            if answer.status == http.HTTPStatus.OK:
                return {}
            return dict(json.loads(answer.read())["failures"])
        except (OSError, http.client.HTTPException):
            return {"web": "does not answer"}
        except (KeyError, TypeError, ValueError):  # another server's answer
            return {"web": f"answers /readyz with {answer.status}"}
        finally:
            connection.close()

    def make_curl(self, key: str, model: str) -> str:
        """Return a shell command that requests a completion constrained to A or B."""
        body = {
            "model": model,
            "prompt": [1, 4093, 198],
            "max_tokens": 2,
            "temperature": 0,
            "ebnf": 'root ::= "A" | "B"',
        }
        return (
            f"curl '{self.url}/v1/completions' -H 'Content-Type: application/json' \\\n"
            f'  -H "Authorization: Bearer {key}" \\\n'
            f"  -d '{json.dumps(body)}'"
        )


def find_free_port() -> int:
    """Return a TCP port that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
