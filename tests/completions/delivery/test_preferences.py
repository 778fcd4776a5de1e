"""The Prefer header and query parameters."""

import pytest
from rest_framework.request import Request
from rest_framework.test import APIRequestFactory

from completions.delivery.preferences import Preferences, read_cursor, read_flag, read_seconds
from completions.exceptions import APIError


def request(query="", **headers) -> Request:
    return Request(APIRequestFactory().get(f"/?{query}", headers=headers))


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("", Preferences()),
        ("respond-async", Preferences(True, 0)),
        ("respond-async, wait=10", Preferences(True, 10)),
        ('Wait="3", Respond-Async', Preferences(True, 3)),
        ("return=minimal, handling=lenient", Preferences()),
        ("wait=abc", Preferences()),
    ],
)
def test_the_prefer_header_is_parsed(header, expected):
    assert Preferences.from_request(request(Prefer=header)) == expected


@pytest.mark.parametrize(("given", "wanted"), [("1", True), ("true", True), ("0", False)])
def test_meta_is_asked_for_by_header(given, wanted):
    assert Preferences.from_request(request(**{"x-include-meta": given})).meta is wanted
    assert not Preferences.from_request(request()).meta
    with pytest.raises(APIError):
        Preferences.from_request(request(**{"x-include-meta": "please"}))


def test_query_flags_are_parsed():
    assert read_flag(request("stream=true"), "stream")
    assert read_flag(request("stream=1"), "stream")
    assert not read_flag(request("stream=false"), "stream")
    assert not read_flag(request(), "stream")
    with pytest.raises(APIError):
        read_flag(request("stream=maybe"), "stream")


def test_seconds_are_capped():
    assert read_seconds(request("wait=2.5"), "wait", 30) == 2.5
    assert read_seconds(request("wait=900"), "wait", 30) == 30
    for bad in ("-1", "nan", "1e3", "x"):
        with pytest.raises(APIError) as refused:
            read_seconds(request(f"wait={bad}"), "wait", 30)
        assert refused.value.param == "wait"


def test_the_cursor_comes_from_the_query_or_from_a_reconnecting_browser():
    assert read_cursor(request()) == -1
    assert read_cursor(request("starting_after=12")) == 12
    assert read_cursor(request(**{"Last-Event-ID": "9"})) == 9
    assert read_cursor(request("starting_after=12", **{"Last-Event-ID": "9"})) == 12
    with pytest.raises(APIError) as refused:
        read_cursor(request(**{"Last-Event-ID": "1-0"}))
    assert refused.value.param == "Last-Event-ID"
