"""The record of a format of tool calls: one description, which the grammar, the parser and the
writer read."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise, starmap
from os.path import commonprefix

from completions.chat.markers import find_marks, match_mark
from completions.chat.prompt_text import PromptText, concatenate, join, trust
from completions.chat.tools import Tool, ToolCall, dump
from completions.contract.stop_spans import StopSpan
from completions.grammars.structural_tag.literals import JSON_QUOTE, Literals
from completions.grammars.structural_tag.parameters import Style

NAME, ID, ARGUMENTS = "{name}", "{id}", "{arguments}"
"""Fields of a call's template."""
WHITESPACE = " \t\r\n"
_MAX_TRIGGERS = 32
"""A grammar repeats all triggers before each of them."""
_FIELDS = re.compile(r"(\{(?:name|id|arguments)\})")
_INSTRUCTIONS = """\
You may call one or more of these functions, whose signatures are inside <tools></tools>:
<tools>
{tools}
</tools>

To call a function, answer in this form:
{example}"""


@dataclass(frozen=True, kw_only=True)
class ToolFormat:
    """How calls look in a model's prompts and in its output."""

    name: str
    """The format's name in models.toml."""
    families: str
    """The models that write it, for docs/models.md."""
    call: str = '{"name": "{name}", "arguments": {arguments}}'
    """A call, with the fields {name}, {id} and {arguments}. White space between its marks is
    optional where the parser reads."""
    other_calls: tuple[str, ...] = ()
    """Other ways in which models write it."""
    arguments: Style | Literals | None = None
    """How arguments are written: as parameters in tags of a style, as literals of a language, or as
    a JSON object."""
    section: tuple[str, str] = ("", "")
    """The texts around all calls that follow each other; empty if each call stands alone."""
    separator: str = "\n"
    """The text between two calls; tool_formats.toml has it only where it is unusual."""
    content: tuple[str, str, str] = ("", "", "")
    """Where an answer's own text does not stand alone: the text that may begin each of its parts,
    the text before its own text, and the text after that, which calls may follow."""
    preamble: tuple[str, str] = ("", "")
    """The texts around what may be said before calls, if that is a part of its own."""
    think: tuple[str, str] | None = None
    """The tags around reasoning, which the chat template puts together from special tokens."""
    ends_reasoning: bool = False
    """Whether a call may end the reasoning, without its end tag."""
    first_id: int = 0
    """The number of the first call."""
    unseen: tuple[str, ...] = ()
    """Further texts that are no part of an answer's own text."""
    around: tuple[str, str] = ("", "")
    """Texts without special tokens around an answer's own text, which are no part of it."""
    trigger: str = ""
    """The text that a section or call begins with, and that free text cannot contain; default: the
    mark or line at its beginning. With {name}, there is one for each tool."""
    ids: str = "[0-9]{1,3}"
    """A pattern for the ids of calls, which ends with their length."""
    call_id: str = ""
    """The id of a call that templates print, with the fields {name} and {id}, which counts the
    calls of a conversation; empty where any id will do."""
    signature: tuple[str, ...] | None = None
    """Texts that are all in the chat templates of models that write this format; default: the marks
    before an argument, or the trigger."""
    other_signature: tuple[str, ...] = ()
    """The same for templates that lack those."""
    model_types: tuple[str, ...] = ()
    """Types of models that write it, by `model_type` in config.json."""
    instructions: str = _INSTRUCTIONS
    """A system message for models whose template does not describe tools; {tools} lists them, and
    {example} is a call."""

    @cached_property
    def segments(self) -> list[str]:
        """The template of a call: literals and fields in turn, beginning with a literal."""
        return _FIELDS.split(self.call)

    @cached_property
    def ways(self) -> list[list[str]]:
        """The segments of each way to write a call."""
        return [self.segments, *map(_FIELDS.split, self.other_calls)]

    @cached_property
    def end(self) -> str:
        """The text after the arguments."""
        return self.segments[-1]

    @cached_property
    def opening(self) -> str:
        text = self.section[0] or self.segments[0]
        return self.trigger or match_mark(text) or text.partition("\n")[0]

    @cached_property
    def signatures(self) -> list[tuple[str, ...]]:
        """Lists of texts, of which one is whole in the templates of models that write it."""
        if (first := self.signature) is None:
            inner = self.arguments.texts[:2] if self.arguments else []
            texts = [self.section[0], self.call.partition(ARGUMENTS)[0], *inner]
            marks = [mark for text in texts for mark in find_marks(text) if NAME not in mark]
            first = tuple(dict.fromkeys(marks)) or (self.opening,)
        return [each for each in (first, self.other_signature) if each]

    @cached_property
    def closing(self) -> str:
        """The text that ends a section or call."""
        return (self.section[1] or self.end or "}").strip().rpartition("\n")[2]

    @cached_property
    def hidden(self) -> tuple[str, ...]:
        """Texts that the parser takes out of an answer's own text."""
        return tuple(filter(None, (*self.content, *self.preamble, *self.unseen)))

    @cached_property
    def delimiters(self) -> tuple[str, ...]:
        """Texts of the format that may be special tokens of the model."""
        inner = self.arguments.texts if self.arguments else []
        texts = [*self.section, self.call, *self.other_calls, *self.content, *self.preamble, *inner]
        return tuple(dict.fromkeys(mark for text in texts for mark in find_marks(text)))

    @cached_property
    def openings(self) -> list[str]:
        """Texts of which one begins a section or call, perhaps with the field {name}."""
        name = f'{NAME}"' if NAME in self.trigger else ""
        return [self.opening, *(way[0].strip() + name for way in self.ways[1:])]

    def list_triggers(self, names: Sequence[str]) -> list[str]:
        """Return the texts of which one begins a section or call of these tools."""
        openings = {each.replace(NAME, name) for name in names for each in self.openings}
        return list(_share_beginnings(frozenset(openings or self.openings)))

    def make_spans(self, names: Sequence[str]) -> list[StopSpan]:
        """Return calls in an answer's text, with what is dropped behind them."""
        separator, style = self.separator.strip(), self.arguments
        is_json = style is None or (isinstance(style, Literals) and style.quote == JSON_QUOTE)
        return [
            StopSpan(trigger, self.closing, is_json, WHITESPACE, separator)
            for trigger in self.list_triggers(names)
        ]

    @property
    def is_object(self) -> bool:
        """Whether a call is a JSON object, whose keys may come in any order."""
        return self.arguments is None and f'"{NAME}"' in self.call

    def write(self, *calls: ToolCall) -> PromptText:
        """Return calls as the model would have written them in one message."""
        texts = (self._write_call(call, index) for index, call in enumerate(calls))
        begin, end = map(trust, self.section)
        return begin + join(trust(self.separator), texts) + end

    def _write_call(self, call: ToolCall, index: int) -> PromptText:
        arguments = self._write_arguments(call)
        fields = {NAME: call.name, ID: trust(self._make_number(index)), ARGUMENTS: arguments}
        *begin, end = (fields.get(segment, trust(segment)) for segment in self.segments)
        return concatenate([*begin, end if arguments else end.removeprefix("\n")])

    def make_call_id(self, name: str, index: int) -> str:
        """Return the id of a conversation's call, as templates print it."""
        return self.call_id.replace(NAME, name).replace(ID, self._make_number(index))

    def _make_number(self, index: int) -> str:
        shortest = self.ids.rpartition("{")[2].partition(",")[0].rstrip("}")
        return str(self.first_id + index).zfill(int(shortest))

    def _write_arguments(self, call: ToolCall) -> str:
        style = self.arguments
        if style is None or isinstance(call.arguments, str):
            return call.text
        if isinstance(style, Literals):
            text, quote = style.write_members(call.arguments), style.quote
            is_plain = quote == JSON_QUOTE or dump(quote)[1:-1] in call.text  # a value may have it
            return text if is_plain else join(trust(quote), text.split(quote))
        begin = self.call.partition(ARGUMENTS)[0]
        apart = "\n" if begin.endswith("\n") else ""
        parameters = starmap(style.write, call.arguments.items())
        return join(trust(apart), map(_trust_own, parameters))

    def write_preamble(self, tools: Sequence[Tool]) -> PromptText:
        """Return the text that describes these tools."""
        text = self.instructions.replace("{example}", self._write_example())
        before, after = text.split("{tools}")
        apart = before[len(before.rstrip()) :]
        list_text = apart.join(dump(tool.to_dict()) for tool in tools)
        return concatenate([trust(before), list_text, trust(after)])

    def _write_example(self) -> str:
        style, name, value = self.arguments, "{argument name}", "{argument value}"
        if style is None:
            arguments = "{arguments as a JSON object}"
        elif isinstance(style, Literals):
            arguments = f"{name}{style.assign}{value}{style.separator}..."
        else:
            arguments = "".join([*style.write(name, value), "\n..."])
        return self.write(ToolCall("{function name}", arguments))


@lru_cache
def _share_beginnings(texts: frozenset[str]) -> Sequence[str]:
    """Return the texts; of more than _MAX_TRIGGERS, those that have most in common share it."""
    triggers = sorted(texts)
    while len(triggers) > _MAX_TRIGGERS:
        common = max(map(commonprefix, pairwise(triggers)), key=len)
        triggers = sorted({common if each.startswith(common) else each for each in triggers})
    return triggers


def _trust_own(parts: Sequence[str]) -> PromptText:
    """Return texts of the format and others in turn."""
    return concatenate(trust(part) if at % 2 == 0 else part for at, part in enumerate(parts))
