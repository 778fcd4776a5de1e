"""A constraint field of a request becomes one llguidance grammar text, validated before
queueing."""

from completions.grammars.constraint import Constraint
from completions.grammars.limits import Limits
from completions.grammars.tokens import TokenSource
from completions.grammars.translation import translate
from completions.grammars.validation.examination import ValidationRequest, ValidationResult
from completions.grammars.validation.validator import Caller, Validator

__all__ = [
    "Caller",
    "Constraint",
    "Limits",
    "TokenSource",
    "ValidationRequest",
    "ValidationResult",
    "Validator",
    "translate",
]
