"""Validates constraints for requests."""

import asyncio
from contextlib import suppress
from dataclasses import fields, replace
from typing import NamedTuple
from urllib.parse import quote

from django.conf import settings

from completions.catalog import model_files
from completions.catalog.entries import ModelEntry
from completions.catalog.model_files import ModelFiles, ModelFilesError
from completions.exceptions import APIError
from completions.grammars import (
    Caller,
    Constraint,
    Limits,
    TokenSource,
    ValidationRequest,
    ValidationResult,
    Validator,
    structural_tag,
)
from completions.grammars.exceptions import GrammarError, GrammarOverloadError

MAX_NAMED = 16
"""The most keywords of one constraint that a header names."""
MAX_NAME = 200
"""The most characters of such a name: proxies refuse headers longer than a few kilobytes."""


NOBODY = Caller()
"""Asks for the service itself."""


class ValidatedGrammar(NamedTuple):
    """A constraint that can be used."""

    grammar: str
    ignored: tuple[str, ...]
    """The places of keywords without effect, and of tools' schemas that are not enforced."""


class Fallback(NamedTuple):
    """A less strict constraint."""

    constraint: Constraint
    paths: tuple[str, ...]
    """Paths of the schemas in the request that it does not enforce."""


async def validate_grammar(
    validator: Validator,
    constraint: Constraint,
    model: ModelFiles,
    fallback: Fallback | None = None,
    caller: Caller = NOBODY,
) -> ValidatedGrammar:
    """Return the llguidance grammar text for a worker, and what has no effect. Raises APIError.

    The fallback replaces one that cannot be used as a whole.
    """
    result = await validate(validator, constraint, model, None, caller)
    is_refused = result.error is not None and not isinstance(result.error, GrammarOverloadError)
    if is_refused and fallback is not None:
        loose = await validate(validator, fallback.constraint, model, None, caller)
        result = replace(loose, relaxed=fallback.paths)
    try:
        return ValidatedGrammar(result.get_grammar(), _list_names(constraint, result))
    except GrammarError as error:
        raise make_refusal(error) from error


async def require_end(
    validator: Validator,
    constraint: Constraint,
    grammar: str,
    model: ModelFiles,
    max_tokens: int,
    caller: Caller,
) -> bool:
    """Return whether a text of the constraint's grammar with at most `max_tokens` tokens is known.
    Raises APIError if none has so few, or none that was found has."""
    source = make_token_source(model)
    try:
        least = await validator.find_least(constraint, grammar, source, max_tokens, caller)
    except GrammarOverloadError as error:
        raise make_refusal(error) from error
    needed = max(least.at_least, 0 if least.shortest is None else least.shortest)
    if needed <= max_tokens:
        return least.shortest is not None
    known = f"at least {needed}" if least.shortest in (None, least.at_least) else str(needed)
    message = (
        f"max_tokens: with close, the constraint needs {known} tokens; max_tokens is {max_tokens}. "
        "Send more, or close: false."
    )
    raise APIError("invalid_value", message, "max_tokens")


def _list_names(constraint: Constraint, result: ValidationResult) -> tuple[str, ...]:
    """Return the keywords without effect as paths: their JSON pointers in URI form."""
    if constraint.field == structural_tag.ANSWER:
        # The pointers of diagnostics lead into a tree that the client did not write.
        paths = list(result.relaxed)
    else:
        paths = [f"{constraint.error_path}#{quote(each.pointer)}" for each in result.diagnostics]
    names = paths[:MAX_NAMED]
    shortened = [name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}..." for name in names]
    return (*shortened, *(["..."] if len(paths) > MAX_NAMED else []))


async def validate(
    validator: Validator,
    constraint: Constraint,
    model: ModelFiles,
    text: str | None,
    caller: Caller,
) -> ValidationResult:
    """Return everything that validation finds out about a constraint, faults included. If `text` is
    given, it is matched too."""
    return await validator.validate(
        ValidationRequest(constraint, make_token_source(model), text), caller
    )


async def warm_up(validator: Validator) -> None:
    """Load the tokens of all models, which takes a second, before the first constraint needs
    them."""
    for entry in model_files.load_catalog():
        with suppress(ModelFilesError, APIError):
            files = await asyncio.to_thread(_load, entry)
            await validate_grammar(validator, Constraint("regex", "a"), files)


def _load(entry: ModelEntry) -> ModelFiles:
    files = model_files.load(entry)
    _ = files.tokenizer, files.eos_token_ids  # read now, in this thread
    return files


def make_refusal(error: GrammarError) -> APIError:
    """Return the error for a constraint that cannot be used, or that could not be validated."""
    if isinstance(error, GrammarOverloadError):
        return APIError(error.code, str(error))
    return APIError(error.code, str(error), error.field)


def make_token_source(model: ModelFiles) -> TokenSource:
    path = str(model.entry.folder / "tokenizer.json")
    return TokenSource(path, model.vocab_size, model.eos_token_ids)


def make_validator() -> Validator:
    """Return a validator with the limits in the settings. The caller closes it."""
    names = (each.name for each in fields(Limits))
    return Validator(
        Limits(**{name: getattr(settings, f"GRAMMAR_{name.upper()}") for name in names})
    )
