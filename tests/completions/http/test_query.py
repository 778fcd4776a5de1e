"""Query parameters that a route does not have."""

import pytest
from django.test import RequestFactory
from rest_framework.request import Request

from completions.exceptions import APIError
from completions.http.query import refuse_unknown


def ask(query: str) -> None:
    refuse_unknown(Request(RequestFactory().get(f"/v1/usage?{query}")), ["limit"], ["models"])


@pytest.mark.parametrize("query", ["limit=1", "models[]=a&models[]=b", "models=a"])
def test_those_of_the_route_are_accepted(query: str) -> None:
    ask(query)


@pytest.mark.parametrize("query", ["limit[]=1", "limits=1", "version=2"])
def test_others_are_refused(query: str) -> None:
    with pytest.raises(APIError, match="no such query parameter"):
        ask(query)


@pytest.mark.parametrize("query", ["api-version=preview&limit=1", "client_version=0.72.0"])
def test_what_a_client_says_about_itself_is_accepted(query: str) -> None:
    """Azure's clients and Codex add these to every address."""
    ask(query)
