"""The examination of one constraint, on a thread of the web process or in a child process."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from completions.grammars.compiler import Compiler
from completions.grammars.constraint import Constraint
from completions.grammars.exceptions import ERRORS, Finding, GrammarError
from completions.grammars.judging.cost import check_cost
from completions.grammars.judging.matching import Match, match
from completions.grammars.limits import Limits
from completions.grammars.tokens import TokenSource
from completions.grammars.translation import screen, translate


@dataclass(frozen=True, slots=True)
class Question:
    """A constraint, the model's tokens, and a text to try if there is one."""

    constraint: Constraint
    tokens: TokenSource | None = None
    text: str | None = None

    def to_json(self) -> dict[str, Any]:
        # Not asdict, which copies the constraint object by object.
        tokens = self.tokens and asdict(self.tokens)
        return {"constraint": list(self.constraint), "tokens": tokens, "text": self.text}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Question":
        tokens = value["tokens"]
        if tokens is not None:
            tokens = TokenSource(**tokens | {"eos_token_ids": tuple(tokens["eos_token_ids"])})
        return cls(Constraint(*value["constraint"]), tokens, value["text"])


@dataclass(frozen=True, slots=True)
class Verdict:
    """A translated grammar or the error, the findings, how the text fits, and the places in the
    request whose schemas are not enforced."""

    grammar: str = ""
    error: GrammarError | None = None
    findings: tuple[Finding, ...] = ()
    match: Match | None = None
    loosened: tuple[str, ...] = ()

    def result(self) -> str:
        """The grammar. Raises the error of a refused constraint."""
        if self.error is None:
            return self.grammar
        raise _copied(self.error)

    def to_json(self) -> dict[str, Any]:
        return {
            "grammar": self.grammar,
            "error": self.error and _error_fields(self.error),
            "findings": [asdict(finding) for finding in self.findings],
            "match": self.match and asdict(self.match),
            "loosened": list(self.loosened),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Verdict":
        return cls(
            value["grammar"],
            _error(value["error"]) if value["error"] else None,
            tuple(Finding(**finding) for finding in value["findings"]),
            Match(**value["match"]) if value["match"] else None,
            tuple(value["loosened"]),
        )

    def size(self) -> int:
        """The bytes that it occupies, roughly."""
        return 500 + len(self.grammar) + 300 * len(self.findings)


def examine(question: Question, limits: Limits) -> Verdict:
    """The verdict on a constraint; errors are in it."""
    compiler = Compiler(question.tokens, limits, compiled={})
    findings: tuple[Finding, ...] = ()
    try:
        translated = translate(question.constraint, compiler)
        try:
            check_cost(translated.grammar, compiler)
        except GrammarError as error:
            error.message = translated.explain(error.message)
            raise
        findings = tuple(translated.warnings)
        found = None
        if question.text is not None:
            found = match(translated.grammar, question.text, compiler)
    except GrammarError as error:
        return _refused(question, error, findings)
    loosened = tuple(translated.loosened)
    return Verdict(translated.grammar, findings=findings, match=found, loosened=loosened)


def screened(question: Question, limits: Limits) -> Verdict | None:
    """The refusal of a constraint beyond the static caps, or None. Compiles nothing."""
    try:
        screen(question.constraint, limits)
    except GrammarError as error:
        return _refused(question, error)
    return None


def _refused(
    question: Question, error: GrammarError, findings: tuple[Finding, ...] = ()
) -> Verdict:
    error.field = error.field or question.constraint.named
    return Verdict(error=_copied(error), findings=(*findings, *error.findings))


def _error_fields(error: GrammarError) -> dict[str, Any]:
    return {
        "code": error.code, "field": error.field, "message": error.message,
        "line": error.line, "column": error.column, "pointer": error.pointer,
    }  # fmt: skip


def _error(fields: Mapping[str, Any]) -> GrammarError:
    kind = ERRORS[fields["code"]]
    error = kind(fields["message"], fields["line"], fields["column"], pointer=fields["pointer"])
    error.field = fields["field"]
    return error


def _copied(error: GrammarError) -> GrammarError:
    """A copy without traceback: a cached error would keep all that its frames hold."""
    return _error(_error_fields(error))
