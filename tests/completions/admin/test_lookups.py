"""What an address may ask of the admin's lists."""

import html
import re
from typing import Any

import pytest
from django.contrib import admin as django_admin
from django.contrib.auth.models import User
from django.db.models import Model
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone

from completions.admin.requests import RequestAdmin
from completions.management import example_data
from completions.models import UsageRecord

MODELS = sorted(django_admin.site._registry, key=lambda model: model._meta.label)
LABELS = [model._meta.label for model in MODELS]


def list_of(model: type[Model]) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")


@pytest.mark.parametrize("model", MODELS, ids=LABELS)
def test_a_lookup_that_no_filter_offers_is_refused(admin: Client, model: type[Model]) -> None:
    """On SQLite, a regular expression runs in this process and may never end."""
    site: Any = django_admin.site._registry[model]
    request = RequestFactory().get("/")
    request.user = User.objects.get()
    for field in model._meta.get_fields():
        for lookup in ("regex", "iregex", "startswith", "contains", "range", "in", "year", "gt"):
            assert not site.lookup_allowed(f"{field.name}__{lookup}", "x", request), field.name
    answer = admin.get(list_of(model), {f"{model._meta.pk.name}__regex": "^(?:[0-9a-f]?){60}!"})
    assert answer.status_code == 400


@pytest.mark.wide
@pytest.mark.parametrize("of_each_filter", ["one", pytest.param("all", marks=pytest.mark.long)])
def test_the_links_of_the_filters_work(admin: Client, of_each_filter: str) -> None:
    example_data.fill(50, timezone.now(), days=2)
    for model in MODELS:
        page = admin.get(list_of(model)).content.decode()
        links = {html.unescape(link) for link in re.findall(r'href="(\?[^"]+)"', page)}
        if of_each_filter == "one":
            links = set({re.sub("=[^&]*", "", link): link for link in sorted(links)}.values())
        for link in links:
            answer = admin.get(list_of(model) + link)
            assert answer.status_code == 200, (model, link)
            assert not answer.wsgi_request.GET.get("e"), (model, link)


@pytest.mark.represented_by("completions.ApiKey", "completions.Batch")
@pytest.mark.parametrize("model", MODELS, ids=LABELS)
def test_no_value_of_a_filter_is_an_error_of_the_server(admin: Client, model: type[Model]) -> None:
    """Django answers what it cannot read with the whole list."""
    site: Any = django_admin.site._registry[model]
    names = [*site.linked_lookups, "q", "o", "p", "all", "e"]
    for each in site.list_filter:
        name = each[0] if isinstance(each, tuple) else getattr(each, "parameter_name", each)
        names += [name, f"{name}__exact", f"{name}__id__exact", f"{name}__gte", f"{name}__isnull"]
    for name in names:
        for value in (str(10**30), "x(\x00²"):
            assert admin.get(list_of(model), {name: value}).status_code < 500, (name, value)


@pytest.mark.parametrize("model", MODELS, ids=LABELS)
def test_no_key_of_a_row_is_an_error_of_the_server(admin: Client, model: type[Model]) -> None:
    for key in (str(10**30), "x²", "_00"):
        assert admin.get(f"{list_of(model)}{key}/change/").status_code < 500, key


@pytest.mark.parametrize(
    ("lookup", "value"),
    [
        ("api_key", f"+{10**30}"),
        ("api_key", f" {10**30}"),
        ("organization__id__exact", "9" * 5000),
        ("finished_at__gte", "9999-12-31T23:59:59-12:00"),
    ],
)
def test_a_value_beyond_sql_is_no_error_of_the_server(
    admin: Client, monkeypatch: pytest.MonkeyPatch, lookup: str, value: str
) -> None:
    """In every form that a field reads as a number or a time."""
    monkeypatch.setattr(RequestAdmin, "linked_lookups", ("api_key", "finished_at__gte"))
    assert admin.get(list_of(UsageRecord), {lookup: value}).status_code < 500
