"""One error envelope for every failure."""

import logging

import orjson
import pytest
import redis
from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.db import InterfaceError, OperationalError
from django.http import Http404
from django.test import Client, RequestFactory
from rest_framework import exceptions as drf

from completions.catalog.model_files import ModelFilesError
from completions.catalog.tokenization import TokenizationError, TokenizerProcessError
from completions.exceptions import APIError, FieldError
from completions.grammars.exceptions import GrammarError, GrammarOverloadError, GrammarTimeoutError
from completions.http import error_handlers
from completions.http.error_handlers import make_api_error


@pytest.mark.parametrize(
    ("exc", "status", "code"),
    [
        (APIError("invalid_value", "x"), 400, "invalid_value"),
        (GrammarError("x", 1, 2), 400, "invalid_grammar"),
        (GrammarTimeoutError("x"), 400, "grammar_timeout"),
        (GrammarOverloadError("x"), 503, "server_overloaded"),
        (ModelFilesError("/secret/path is missing"), 503, "model_loading"),
        (TokenizerProcessError("x"), 503, "server_overloaded"),
        (TokenizationError("secret"), 500, "internal_error"),
        (redis.ConnectionError("/secret/socket"), 503, "queue_unavailable"),
        (OperationalError("secret"), 503, "database_unavailable"),
        (InterfaceError("secret"), 503, "database_unavailable"),
        (Http404(), 404, "not_found"),
        (drf.NotFound(), 404, "not_found"),
        (drf.MethodNotAllowed("PUT"), 405, "method_not_allowed"),
        (drf.UnsupportedMediaType("text/plain"), 415, "unsupported_media_type"),
        (RequestDataTooBig(), 413, "payload_too_large"),
        (SuspiciousOperation("x"), 400, "invalid_request"),
        (drf.ValidationError("x"), 400, "invalid_request"),
        (drf.APIException("x"), 500, "internal_error"),
        (ZeroDivisionError("secret"), 500, "internal_error"),
    ],
)
def test_every_exception_has_a_place(exc: Exception, status: int, code: str) -> None:
    error = make_api_error(exc)
    assert (error.status_code, error.code) == (status, code)
    assert "secret" not in error.message


def test_unhandled_exceptions_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        make_api_error(ZeroDivisionError("seen by the operator"))
    assert "seen by the operator" in caplog.text


def test_field_errors_collect_their_path() -> None:
    error = FieldError("must be a string.", "type", code="invalid_type")
    error.inside("[2]")
    error.inside("content")
    error.inside("[0]")
    error.inside("messages")
    refused = error.api_error()
    assert refused.param == "messages[0].content[2].type"
    assert refused.message == "messages[0].content[2].type: must be a string."


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/completions/a/b/c"])
def test_unknown_paths_of_the_api(client: Client, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 404
    assert response.headers["Content-Type"] == "application/json"
    assert response.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize("path", ["/chat/completions", "/v1", "/v2/models", "/"])
def test_an_unknown_path_outside_v1_names_the_base_url(client: Client, path: str) -> None:
    response = client.post(path)
    assert response.status_code == 404
    message = response.json()["error"]["message"]
    assert "base URL" in message
    assert "/docs" in message


def test_a_browser_is_led_on(client: Client) -> None:
    response = client.get("/docs/")
    assert (response.status_code, response.headers["Location"]) == (302, "/docs")
    page = client.get("/", headers={"Accept": "text/html, */*"}).content.decode()
    assert 'href="/admin/"' in page
    assert 'href="/docs"' in page
    assert "http://testserver/v1" in page
    assert client.get("/", headers={"Accept": "*/*"}).status_code == 404


def test_a_browser_gets_a_page_where_nothing_is(client: Client) -> None:
    response = client.get("/v2/models", headers={"Accept": "text/html, */*"})
    assert response.status_code == 404
    assert "/v2/models" in response.content.decode()
    api = client.get("/v1/nothing", headers={"Accept": "text/html, */*"})
    assert api.json()["error"]["code"] == "not_found"


def test_unknown_paths_of_browsers_get_html(client: Client) -> None:
    response = client.get("/docs/nothing")
    assert response.status_code == 404
    assert response.headers["Content-Type"].startswith("text/html")


def test_handlers_of_django() -> None:
    api, page = RequestFactory().get("/v1/x"), RequestFactory().get("/admin/x")
    for handler, status in (
        (error_handlers.handle_not_found, 404),
        (error_handlers.handle_bad_request, 400),
    ):
        response = handler(api, SuspiciousOperation())
        assert response.status_code == status
        assert orjson.loads(response.content)["error"]["code"]
        assert handler(page, SuspiciousOperation()).headers["Content-Type"].startswith("text/html")
    response = error_handlers.handle_server_error(api)
    assert response.status_code == 500
    assert orjson.loads(response.content)["error"]["type"] == "server_error"
    assert error_handlers.handle_server_error(page).headers["Content-Type"].startswith("text/html")


def test_headers_of_an_error_reach_the_response() -> None:
    error = APIError("generation_timeout")
    assert error_handlers.make_response(error, "/v1/models").headers["x-should-retry"] == "false"
