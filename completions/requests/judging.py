"""This process's judge of constraints."""

import asyncio
import atexit
from contextlib import suppress
from dataclasses import fields, replace
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote

from django.conf import settings

from completions.catalog import model_files
from completions.catalog.entries import ModelEntry
from completions.catalog.model_files import ModelFiles, ModelFilesError
from completions.exceptions import APIError
from completions.grammars import (
    Asker,
    Constraint,
    Judge,
    Limits,
    Question,
    TokenSource,
    Verdict,
    structural_tag,
)
from completions.grammars.exceptions import GrammarError, GrammarOverloadError

MAX_NAMED = 16
"""The most keywords of one constraint that a header names."""
MAX_NAME = 200
"""The most characters of such a name: proxies refuse headers longer than a few kilobytes."""


NOBODY = Asker()
"""Asks for the service itself."""


class Judged(NamedTuple):
    """A constraint that can be used."""

    grammar: str
    ignored: tuple[str, ...]
    """The places of keywords without effect, and of tools' schemas that are not enforced."""


class Looser(NamedTuple):
    """A less strict constraint."""

    constraint: Constraint
    places: tuple[str, ...]
    """Paths of the schemas in the request that it does not enforce."""


async def judge(
    constraint: Constraint, model: ModelFiles, looser: Looser | None = None, asker: Asker = NOBODY
) -> Judged:
    """The llguidance grammar text for a worker, and what has no effect. Raises APIError.

    The looser constraint replaces one that cannot be used as a whole.
    """
    verdict = await examine(constraint, model, None, asker)
    is_refused = verdict.error is not None and not isinstance(verdict.error, GrammarOverloadError)
    if is_refused and looser is not None:
        loose = await examine(looser.constraint, model, None, asker)
        verdict = replace(loose, loosened=looser.places)
    try:
        return Judged(verdict.result(), _names(constraint, verdict))
    except GrammarError as error:
        raise refusal(error) from error


def _names(constraint: Constraint, verdict: Verdict) -> tuple[str, ...]:
    """The keywords without effect as paths: their JSON pointers in URI form."""
    if constraint.field == structural_tag.ANSWER:
        # The pointers of findings lead into a tree that the client did not write.
        places = list(verdict.loosened)
    else:
        places = [f"{constraint.named}#{quote(each.pointer)}" for each in verdict.findings]
    named = places[:MAX_NAMED]
    shown = [name if len(name) <= MAX_NAME else f"{name[:MAX_NAME]}..." for name in named]
    return (*shown, *(["..."] if len(places) > MAX_NAMED else []))


async def examine(
    constraint: Constraint, model: ModelFiles, text: str | None, asker: Asker
) -> Verdict:
    """Everything that the judge finds out about a constraint, faults included. If `text` is given,
    the judge matches it."""
    return await _judge().ask(Question(constraint, token_source(model), text), asker)


async def warm_up() -> None:
    """Load the tokens of all models, which takes a second, before the first constraint needs
    them."""
    for entry in model_files.served_models():
        with suppress(ModelFilesError, APIError):
            await judge(Constraint("regex", "a"), await asyncio.to_thread(_loaded, entry))


def _loaded(entry: ModelEntry) -> ModelFiles:
    files = model_files.load(entry)
    _ = files.tokenizer, files.eos_token_ids  # read now, in this thread
    return files


def refusal(error: GrammarError) -> APIError:
    """The error for a constraint that cannot be used, or that could not be judged."""
    if isinstance(error, GrammarOverloadError):
        return APIError(error.code, str(error))
    return APIError(error.code, str(error), error.field)


def token_source(model: ModelFiles) -> TokenSource:
    path = str(model.entry.folder / "tokenizer.json")
    return TokenSource(path, model.vocab_size, model.eos_token_ids)


@lru_cache
def _judge() -> Judge:
    names = (each.name for each in fields(Limits))
    judge = Judge(Limits(**{name: getattr(settings, f"GRAMMAR_{name.upper()}") for name in names}))
    atexit.register(judge.close)
    return judge
