"""OpenAI's fields that have no effect here. The header x-ignored-params names those given."""

from completions.requests.fields.base import BooleanField, ObjectField, TextField
from completions.requests.fields.objects import StrictSerializer, Values

HEADER = "x-ignored-params"


class IgnoredFields(StrictSerializer):
    user = TextField(
        required=False, max_length=256, help_text="The client's id of its own user; no effect."
    )
    metadata = ObjectField(required=False, help_text="No effect.")
    store = BooleanField(required=False, help_text="No effect.")
    service_tier = TextField(required=False, max_length=64, help_text="No effect.")
    safety_identifier = TextField(required=False, max_length=256, help_text="No effect.")
    prompt_cache_key = TextField(
        required=False, max_length=256, help_text="No effect; prefixes are always cached."
    )
    prompt_cache_retention = TextField(required=False, max_length=64, help_text="No effect.")


_NAMES = tuple(IgnoredFields().fields)


def ignored(values: Values, *more: str) -> tuple[str, ...]:
    """Names of the given fields that have no effect; `more` are the route's own."""
    return tuple(name for name in (*_NAMES, *more) if values[name] is not None)
