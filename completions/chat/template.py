"""Renders messages with the model's own Jinja template, as transformers does.

The text knows which of its characters the template wrote: constants of its source are PromptTexts,
and what joins texts keeps that.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from string import Formatter
from types import MappingProxyType
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension
from jinja2.filters import make_attrgetter
from jinja2.meta import find_undeclared_variables
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from completions.catalog.model_files import SPECIAL_TOKENS, ModelFiles
from completions.chat.prompt_text import FOREIGN, PromptText, concatenate, join, trust

RESERVED = frozenset(
    {"messages", "tools", "add_generation_prompt", "chat_template", *SPECIAL_TOKENS}
)
"""Variables that a caller may not set."""


class ChatTemplateError(Exception):
    """The model has no chat template, or its template refused these messages."""


class _GenerationBlock(Extension):
    """`{% generation %}` marks what an assistant wrote, for training; here it is just its body."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _format_now(pattern: str) -> str:
    return datetime.now().astimezone().strftime(pattern)


def _dump_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON, with the parameters that transformers has; jinja's own filter escapes it for
    HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


class _TrustingGenerator(CodeGenerator):
    """Compiler of templates whose constants are PromptTexts. Jinja finds methods by their names."""

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802
        if isinstance(node.value, str):
            self.write(_write_constant(node.value))
        else:
            super().visit_Const(node, frame)

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:  # noqa: N802
        self.write(_write_constant(node.data))

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return _write_constant("".join(group))

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.concat(map(str, (")
        for each in node.nodes:
            self.visit(each, frame)
            self.write(", ")
        self.write(")))")


def _write_constant(text: str) -> str:
    return f"environment.trust({text!r})"


class _Environment(ImmutableSandboxedEnvironment):
    code_generator_class = _TrustingGenerator
    concat = staticmethod(concatenate)
    trust = staticmethod(trust)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Return the sandbox's `str.format`, but it keeps what the template wrote."""
        plain = super().wrap_str_format(value)
        if plain is None or not isinstance(value.__self__, PromptText):
            return plain
        return partial(_format, value.__self__, plain)


def _format(text: PromptText, plain: Callable[..., str], *args: object, **kwargs: object) -> str:
    """Return a formatted text, with its mask if all of its fields are plain names or empty."""
    result = plain(*args, **kwargs)
    parts: list[str] = []
    values = iter(args)
    for literal, field, spec, conversion in Formatter().parse(text):
        parts.append(trust(literal))
        if field is not None and not (spec or conversion):
            parts.append(str(kwargs.get(field, "") if field else next(values, "")))
    is_exact = FOREIGN not in text.mask and "".join(parts) == result
    return concatenate(parts) if is_exact else result


@jinja2.pass_environment
def _join(
    environment: jinja2.Environment,
    value: Iterable[object],
    d: str = "",
    attribute: str | int | None = None,
) -> str:
    """Jinja's filter, but it keeps what the template wrote."""
    if attribute is not None:
        value = map(make_attrgetter(environment, attribute), value)
    return join(d, map(str, value))


@lru_cache
def _make_environment() -> ImmutableSandboxedEnvironment:
    environment = _Environment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"],
    )
    environment.filters["tojson"] = _dump_json
    environment.filters["join"] = _join
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _format_now
    return environment


@lru_cache
def _compile(source: str) -> jinja2.Template:
    return _make_environment().from_string(source)


@lru_cache
def find_variables(source: str) -> frozenset[str]:
    """Return the names of the variables that a template reads. Raises ChatTemplateError."""
    try:
        return frozenset(find_undeclared_variables(_make_environment().parse(source)))
    except jinja2.TemplateError as error:
        raise ChatTemplateError(f"the model's chat template is broken: {error}") from error


def _prepare_message(message: Mapping[str, object]) -> Mapping[str, object]:
    """Return the message with its role as the template's own text, since templates make special
    tokens of roles, and with its reasoning under the name that gpt-oss's template reads too.

    That template refuses a call that has both, since it would take the content for the reasoning.
    """
    message = {**message, "role": trust(str(message["role"]))}
    if "reasoning_content" not in message or (message.get("tool_calls") and message.get("content")):
        return message
    return {"thinking": message["reasoning_content"], **message}


def render(
    model: ModelFiles,
    messages: Sequence[Mapping[str, object]],
    *,
    add_generation_prompt: bool,
    tools: Sequence[Mapping[str, object]] | None = None,
    options: Mapping[str, object] = MappingProxyType({}),
) -> PromptText:
    """Return the prompt text of a conversation. Raises ChatTemplateError.

    `options` are additional template variables, which cannot replace the built-in ones.
    """
    source = model.choose_template(bool(tools))
    if source is None:
        raise ChatTemplateError(f"the model {model.entry.id} has no chat template")
    variables = {
        **options,
        **{name: trust(text) for name, text in model.special_tokens.items()},
        "messages": [_prepare_message(message) for message in messages],
        "tools": tools,
        "add_generation_prompt": add_generation_prompt,
    }
    try:
        return concatenate(_compile(source).generate(variables))
    except RecursionError as error:  # of a macro, over tools or arguments
        message = "the model's chat template refused them: they are nested too deeply for it"
        raise ChatTemplateError(message) from error
    except Exception as error:  # filters raise whatever Python does for values that they lack
        raise ChatTemplateError(f"the model's chat template refused them: {error}") from error
