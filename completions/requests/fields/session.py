"""Fields of a request that is a turn of a session."""

from completions.exceptions import FieldError
from completions.models import OnDrift
from completions.requests.context import Context
from completions.requests.fields.base import ChoiceField, TextField
from completions.requests.fields.objects import StrictObject
from completions.requests.past import Past

NEW = "new"
"""The value of `session` that makes one."""
ROOT = "root"
"""The value of `after` that names a session's beginning."""


class SessionFields(StrictObject[object]):
    session = TextField(
        "The id of a session, or `new`: the prompt is what the session holds, and then what this "
        "request gives (docs/sessions.md). Not in lines of batches.",
        max_length=64,
    )
    after = TextField(
        "With session: the id of the choice that this turn comes after, or `root`; default: the "
        "answer of the newest turn.",
        max_length=80,
    )
    on_drift = ChoiceField(
        "With session, where the chat template would write earlier messages in another way now: "
        "`keep` the tokens as they are, `rebase` on the template's text, or `fail`; default: the "
        "session's own.",
        choices=OnDrift.values,
    )


def get_past(values: SessionFields, context: Context) -> Past | None:
    """Return what the session holds; None for a request without one. Raises FieldError."""
    if values.session is None:
        for name in ("after", "on_drift"):
            if getattr(values, name) is not None:
                raise FieldError("needs session.", name)
    elif context.earlier.past is None:
        message = "a line of a batch cannot be a turn of a session; leave this out."
        raise FieldError(message, "session", code="unsupported_parameter")
    elif context.earlier.past.model not in ("", context.model.entry.id):
        message = f"this session is of {context.earlier.past.model}; leave this out."
        raise FieldError(message, "model")
    return context.earlier.past
