"""OpenAI's fields without effect here: accepted, and named in the header x-ignored-params."""

from collections.abc import Mapping
from typing import Any

from completions.requests.fields import BooleanField, ObjectField, StrictSerializer, TextField

HEADER = "x-ignored-params"


class IgnoredFields(StrictSerializer):
    user = TextField(
        required=False, max_length=256, help_text="The caller's own id of its user; without effect."
    )
    metadata = ObjectField(required=False, help_text="Without effect.")
    store = BooleanField(required=False, help_text="Without effect.")
    service_tier = TextField(required=False, max_length=64, help_text="Without effect.")
    safety_identifier = TextField(required=False, max_length=256, help_text="Without effect.")
    prompt_cache_key = TextField(
        required=False, max_length=256, help_text="Without effect; prefixes are always cached."
    )
    prompt_cache_retention = TextField(required=False, max_length=64, help_text="Without effect.")


NAMES = tuple(IgnoredFields().fields)


def ignored(validated: Mapping[str, Any], *also: str) -> tuple[str, ...]:
    """Names of the fields that were given and have no effect; `also` are those of the route."""
    return tuple(name for name in (*NAMES, *also) if validated[name] is not None)
