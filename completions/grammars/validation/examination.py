"""The examination of one constraint, on a thread of the web process or in a child process."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from completions.grammars.compiler import Compiler
from completions.grammars.constraint import Constraint
from completions.grammars.exceptions import ERRORS, Diagnostic, GrammarError
from completions.grammars.limits import Limits
from completions.grammars.tokens import TokenSource
from completions.grammars.translation import screen, translate
from completions.grammars.validation.cost import check_cost
from completions.grammars.validation.matching import Match, match


@dataclass(frozen=True, slots=True)
class ValidationRequest:
    """A constraint, the model's tokens, and a text to try if there is one."""

    constraint: Constraint
    tokens: TokenSource | None = None
    text: str | None = None

    def to_json(self) -> dict[str, Any]:
        # Not asdict, which copies the constraint object by object.
        tokens = self.tokens and asdict(self.tokens)
        return {"constraint": list(self.constraint), "tokens": tokens, "text": self.text}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "ValidationRequest":
        tokens = value["tokens"]
        if tokens is not None:
            tokens = TokenSource(**tokens | {"eos_token_ids": tuple(tokens["eos_token_ids"])})
        return cls(Constraint(*value["constraint"]), tokens, value["text"])


@dataclass(frozen=True, slots=True)
class ValidationResult:
    """A translated grammar or the error, the diagnostics, how the text fits, and the paths in the
    request whose schemas are not enforced."""

    grammar: str = ""
    error: GrammarError | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
    match: Match | None = None
    relaxed: tuple[str, ...] = ()

    def get_grammar(self) -> str:
        """Return the grammar. Raises the error of a refused constraint."""
        if self.error is None:
            return self.grammar
        raise _copy_error(self.error)

    def to_json(self) -> dict[str, Any]:
        return {
            "grammar": self.grammar,
            "error": self.error and _dump_error(self.error),
            "diagnostics": [asdict(diagnostic) for diagnostic in self.diagnostics],
            "match": self.match and asdict(self.match),
            "relaxed": list(self.relaxed),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "ValidationResult":
        return cls(
            value["grammar"],
            _load_error(value["error"]) if value["error"] else None,
            tuple(Diagnostic(**diagnostic) for diagnostic in value["diagnostics"]),
            Match(**value["match"]) if value["match"] else None,
            tuple(value["relaxed"]),
        )

    def measure_size(self) -> int:
        """Return the bytes that it occupies, roughly."""
        return 500 + len(self.grammar) + 300 * len(self.diagnostics)


def validate(request: ValidationRequest, limits: Limits) -> ValidationResult:
    """Validate a constraint; errors are in it."""
    compiler = Compiler(request.tokens, limits, recent={})
    diagnostics: tuple[Diagnostic, ...] = ()
    try:
        translated = translate(request.constraint, compiler)
        try:
            check_cost(translated.grammar, compiler)
        except GrammarError as error:
            error.message = translated.explain(error.message)
            raise
        diagnostics = tuple(translated.warnings)
        match_result = None
        if request.text is not None:
            match_result = match(translated.grammar, request.text, compiler)
    except GrammarError as error:
        return _make_refusal(request, error, diagnostics)
    relaxed = tuple(translated.relaxed)
    return ValidationResult(
        translated.grammar, diagnostics=diagnostics, match=match_result, relaxed=relaxed
    )


def find_refusal(request: ValidationRequest, limits: Limits) -> ValidationResult | None:
    """Return the refusal of a constraint beyond the static caps, or None. Compiles nothing."""
    try:
        screen(request.constraint, limits)
    except GrammarError as error:
        return _make_refusal(request, error)
    return None


def _make_refusal(
    request: ValidationRequest, error: GrammarError, diagnostics: tuple[Diagnostic, ...] = ()
) -> ValidationResult:
    error.field = error.field or request.constraint.error_path
    return ValidationResult(
        error=_copy_error(error), diagnostics=(*diagnostics, *error.diagnostics)
    )


def _dump_error(error: GrammarError) -> dict[str, Any]:
    return {
        "code": error.code,
        "field": error.field,
        "message": error.message,
        "line": error.line,
        "column": error.column,
        "pointer": error.pointer,
    }


def _load_error(fields: Mapping[str, Any]) -> GrammarError:
    kind = ERRORS[fields["code"]]
    error = kind(fields["message"], fields["line"], fields["column"], pointer=fields["pointer"])
    error.field = fields["field"]
    return error


def _copy_error(error: GrammarError) -> GrammarError:
    """Return a copy without traceback: a cached error would keep all that its frames hold."""
    return _load_error(_dump_error(error))
