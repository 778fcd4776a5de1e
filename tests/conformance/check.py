"""What an engine writes under a JSON Schema, held against the schema by another implementation."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema
from jsonschema.validators import validator_for
from tokenizers import Tokenizer

from completions.contract.sampling import SamplingParams
from completions.grammars import Constraint, translate
from completions.grammars.compiler import Compiler
from tests.conformance.corpus import Schema
from workers.engine.core.request import Request
from workers.engine.engine import Engine
from workers.engine.text.finish import FinishReason


@dataclass(frozen=True, slots=True)
class Outcome:
    """A schema, what was written under it, and why that is no instance of it, if so."""

    schema: Schema
    text: str
    finished: bool
    """Whether the text ended by itself; else it was cut off, and says nothing."""
    fault: str = ""


def write(
    engine: Engine,
    tokenizer: Tokenizer,
    compiler: Compiler,
    schemas: Sequence[Schema],
    max_tokens: int,
) -> Iterator[Outcome]:
    """One text at temperature 1 for each schema, each with a seed of its own."""
    requests = []
    for index, schema in enumerate(schemas):
        whitespace = ("compact", "flexible")[index % 2]
        grammar = translate(Constraint("json_schema", schema, whitespace), compiler).grammar
        prompt = tokenizer.encode(f"JSON for the schema {json.dumps(schema)}:\n").ids[-256:]
        sampling = SamplingParams(max_tokens=max_tokens, temperature=1.0, seed=index)
        requests.append(
            Request(
                (tuple(prompt),),
                sampling=sampling,
                grammar=grammar,
                request_id=str(index),
            )
        )
    for schema, completion in zip(schemas, engine.generate(requests), strict=True):
        if completion.error is not None:
            yield Outcome(schema, "", True, f"{completion.error}")
            continue
        (choice,) = completion.choices
        finished = choice.finish_reason is FinishReason.STOP
        yield Outcome(schema, choice.text, finished, fault(schema, choice.text) if finished else "")


def fault(schema: Schema, text: str) -> str:
    """Why a text is no instance; empty if it is one."""
    kind = validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        value = json.loads(text, parse_constant=_no_constant)
        formats = jsonschema.FormatChecker(())
        formats.checkers = {
            **kind.FORMAT_CHECKER.checkers, "relative-json-pointer": (_is_relative_pointer, ())
        }  # fmt: skip
        kind(schema, format_checker=formats).validate(value)
    except (ValueError, jsonschema.ValidationError) as error:
        return str(error).partition("\n")[0]
    return ""


def _is_relative_pointer(value: object) -> bool:
    """draft-bhutton-relative-json-pointer-00, 3. jsonschema's own check refuses a zero within the
    number, and knows no index adjustment."""
    origin = r"(?:0|[1-9][0-9]*)(?:[+-][1-9][0-9]*)?"
    whole = rf"{origin}(?:#|(?:/(?:[^/~]|~[01])*)*)"
    return not isinstance(value, str) or re.fullmatch(whole, value) is not None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
