"""This process's judge of constraints."""

import atexit
from dataclasses import fields
from functools import lru_cache

from django.conf import settings

from completions.catalog.model_files import ModelFiles
from completions.errors import APIError
from completions.grammars import Constraint, Judge, Limits, Question, TokenSource, Verdict
from completions.grammars.exceptions import GrammarError, GrammarOverloadError


async def judge(constraint: Constraint, model: ModelFiles) -> str:
    """The llguidance grammar text for a worker. Raises APIError."""
    try:
        return await _judge().judge(constraint, _token_source(model))
    except GrammarError as error:
        raise refusal(error) from error


async def examine(constraint: Constraint, model: ModelFiles, text: str | None) -> Verdict:
    """All that the judge finds out about a constraint, faults included. It tries `text` on it."""
    return await _judge().ask(Question(constraint, _token_source(model), text))


def refusal(error: GrammarError) -> APIError:
    """The error for a constraint that cannot be used, or that nobody could judge."""
    if isinstance(error, GrammarOverloadError):
        return APIError(error.code, str(error))
    return APIError(error.code, str(error), error.field)


def _token_source(model: ModelFiles) -> TokenSource:
    path = str(model.folder / "tokenizer.json")
    return TokenSource(path, model.vocab_size, model.eos_token_ids)


@lru_cache
def _judge() -> Judge:
    names = (each.name for each in fields(Limits))
    judge = Judge(Limits(**{name: getattr(settings, f"GRAMMAR_{name.upper()}") for name in names}))
    atexit.register(judge.close)
    return judge
