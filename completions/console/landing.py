"""The page at the server's address."""

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.vary import vary_on_headers


@vary_on_headers("Accept")
def show_landing(request: HttpRequest) -> HttpResponse:
    """Show a browser three ways to go on. API clients get 404, with the base URL to use."""
    if "text/html" not in request.headers.get("Accept", ""):
        raise Http404
    return render(request, "quire/landing.html", {"base": request.build_absolute_uri("/v1")})
