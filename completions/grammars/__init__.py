"""A constraint field of a request becomes one llguidance grammar text, judged before queueing."""

from completions.grammars.constraint import Constraint
from completions.grammars.judging.examination import Question, Verdict
from completions.grammars.judging.judge import Asker, Judge
from completions.grammars.limits import Limits
from completions.grammars.tokens import TokenSource
from completions.grammars.translation import translate

__all__ = [
    "Asker", "Constraint", "Judge", "Limits", "Question", "TokenSource", "Verdict", "translate",
]  # fmt: skip
