"""Fields of other APIs that Quire does not have: some are ignored, and the response's header
`x-ignored-params` names them; the others are refused with what to send instead.
"""

from typing import Any

from completions.requests.fields.base import BooleanField, ObjectField, TextField
from completions.requests.fields.objects import StrictObject


class IgnoredFields(StrictObject[Any]):
    """Fields that are checked and then have no effect; each route adds its own, `ignored_too`."""

    user = TextField("The client's id of its own user; no effect.", max_length=256)
    metadata = ObjectField("No effect.")
    store = BooleanField("No effect.")
    service_tier = TextField("No effect.", max_length=64)
    safety_identifier = TextField("No effect.", max_length=256)
    prompt_cache_key = TextField("No effect; prefixes are always cached.", max_length=256)
    prompt_cache_retention = TextField("No effect.", max_length=64)
    guided_decoding_backend = TextField("No effect; llguidance is the only one.", max_length=256)
    guided_whitespace_pattern = TextField("No effect; json_whitespace chooses.", max_length=256)


FOREIGN_NAMES = {
    "sampling_params": "Send its fields at the top level of the body.",
    "text": "Use prompt.",
    "max_new_tokens": "Use max_tokens.",
    "return_tokens_as_token_ids": "Use return_token_ids.",
    "extra_key": "Use cache_salt.",
}
"""Names that SGLang's native route and vLLM have: they are refused with this hint."""
