"""The examination of one constraint, on a thread of the web process or in a child process."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

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

    def to_json(self) -> dict[str, object]:
        # Not to_builtins, which copies the constraint object by object.
        tokens = self.tokens and asdict(self.tokens)
        return {"constraint": list(self.constraint), "tokens": tokens, "text": self.text}

    @classmethod
    def from_json(cls, value: object) -> "ValidationRequest":
        return msgspec.convert(value, cls)


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

    def to_json(self) -> object:
        return msgspec.to_builtins(self, enc_hook=_dump_error)

    @classmethod
    def from_json(cls, value: object) -> "ValidationResult":
        return msgspec.convert(value, cls, dec_hook=_load_error)

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


def _dump_error(error: GrammarError) -> dict[str, object]:
    names = ("code", "field", "message", "line", "column", "pointer")
    return {name: getattr(error, name) for name in names}


def _load_error(kind: type, fields: Mapping[str, Any]) -> GrammarError:
    place = fields["line"], fields["column"]
    error = ERRORS[fields["code"]](fields["message"], *place, pointer=fields["pointer"])
    error.field = fields["field"]
    return error


def _copy_error(error: GrammarError) -> GrammarError:
    """Return a copy without traceback: a cached error would keep all that its frames hold."""
    return _load_error(GrammarError, _dump_error(error))
