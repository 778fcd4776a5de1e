"""project.processes.endpoint: free or taken, ready or not, and the command to paste."""

import contextlib
import http.server
import json
import shlex
import socket
import threading

import pytest

from project.processes.endpoint import Endpoint, find_free_port


@pytest.mark.integration
def test_a_free_port_can_be_listened_on():
    Endpoint("127.0.0.1", find_free_port()).require_free()


@pytest.mark.integration
def test_a_taken_port_is_refused():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        pytest.raises(OSError, match="in use"),
    ):
        Endpoint("127.0.0.1", server.getsockname()[1]).require_free()


@contextlib.contextmanager
def web_server(status, body):
    """The endpoint of a server whose /readyz answers so."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/readyz" else 500)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Endpoint("127.0.0.1", server.server_port)
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("status", "body", "failures"),
    [
        (200, b'{"status":"ready"}', {}),
        (503, b'{"failures":{"worker":"none"}}', {"worker": "none"}),
        (500, b"oops", {"web": "answers /readyz with 500"}),
        (503, b"[]", {"web": "answers /readyz with 503"}),
    ],
)
def test_ready_is_what_readyz_says(status, body, failures):
    with web_server(status, body) as endpoint:
        assert endpoint.is_ready() is (not failures)
        assert endpoint.get_failures() == failures


@pytest.mark.integration
def test_a_closed_port_is_not_ready():
    endpoint = Endpoint("127.0.0.1", find_free_port())
    assert not endpoint.is_ready()
    assert endpoint.get_failures() == {"web": "does not answer"}


def test_the_url_can_be_opened_even_when_all_addresses_are_bound():
    assert Endpoint("0.0.0.0", 8000).url == "http://127.0.0.1:8000"  # noqa: S104


@pytest.mark.parametrize("host", ["::1", "::"])
def test_an_ipv6_address_stands_in_brackets(host):
    assert Endpoint(host, 8000).url == "http://[::1]:8000"


def test_the_curl_line_survives_a_shell():
    words = shlex.split(Endpoint("127.0.0.1", 8000).make_curl("sk-1", "tiny").replace("\\\n", ""))
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/completions"]
    assert "Authorization: Bearer sk-1" in words
    assert json.loads(words[-1])["ebnf"] == 'root ::= "A" | "B"'


def test_the_brackets_of_an_ipv6_address_are_no_pattern_of_the_shell():
    """zsh and `shopt -s failglob` refuse a bare pattern that no file matches."""
    assert " 'http://[::1]:8000/v1/completions' " in Endpoint("::1", 8000).make_curl("sk-1", "tiny")
