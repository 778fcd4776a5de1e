"""The body of POST /v1/chat/completions."""

from collections.abc import Sequence
from dataclasses import replace

from completions.chat.grammar import BudgetError, Calls, Thoughts, answer_constraint
from completions.chat.thinking import DISABLED, ENABLED, Marks
from completions.chat.tools import REQUIRED, Tool
from completions.contract.sampling import MAX_TOP_LOGPROBS
from completions.exceptions import FieldError
from completions.requests.conversation import (
    NO_THOUGHTS,
    TEMPLATE_FIELDS,
    ConversationFields,
    Thinking,
)
from completions.requests.fields.base import BooleanField, ChoiceField, IntegerField, ListField
from completions.requests.fields.ignored import FOREIGN_NAMES
from completions.requests.fields.objects import Values
from completions.requests.fields.prompt import RawPromptField
from completions.requests.fields.tokens import TokenIdsField, token_ids
from completions.requests.fields.tools import placed
from completions.requests.generation import (
    ChatSettings,
    GenerationFields,
    GenerationRequest,
    check_context,
)
from completions.requests.judging import Looser

_PROMPTS = ("messages", "prompt", "input_ids")
_TAIL = 16
"""How many tokens at the end of a raw prompt are searched for the mark that opens thoughts."""


class ChatRequestObject(GenerationFields, ConversationFields):
    unsupported = {
        **FOREIGN_NAMES,
        "functions": "Use tools.",
        "function_call": "Use tool_choice.",
        **dict.fromkeys(
            ("reasoning_effort", "reasoning", "enable_thinking"),
            'Use thinking: {"type": "enabled"} or {"type": "disabled"}.',
        ),
        **dict.fromkeys(
            ("echo", "suffix", "best_of", "truncate_sequence"), "POST /v1/completions takes it."
        ),
        "audio": "This service answers with text alone; omit it.",
        "prediction": "Omit it: it changes the speed, not the answer.",
        "verbosity": "Ask for a short or a long answer in a message.",
        "web_search_options": "Use tools.",
        "chat_template": "The model's own template is used.",
    }

    prompt = RawPromptField("Instead of messages: text or token ids, used as they are.")
    input_ids = TokenIdsField("Instead of messages: token ids.")
    max_tokens = IntegerField(
        "Most tokens to generate, per choice, thoughts included; default: to the end of "
        "the context.",
        min_value=1,
    )
    max_completion_tokens = IntegerField("The same as max_tokens.", min_value=1)
    modalities = ListField(
        'Only ["text"]: nothing else is generated.',
        child=ChoiceField(choices=["text"]),
        max_length=1,
    )
    parallel_tool_calls = BooleanField("false: at most one call per answer; default true.")
    logprobs = BooleanField(
        "Log probabilities of the tokens, in `choices[].logprobs.content`.", default=False
    )
    top_logprobs = IntegerField(
        "With logprobs: this many of the likeliest tokens too.",
        min_value=0,
        max_value=MAX_TOP_LOGPROBS,
    )
    separate_reasoning = BooleanField(
        "Thoughts in reasoning_content; false: in content, marks included.", default=True
    )
    stream_reasoning = BooleanField(
        "false: thoughts come in one piece, when they are complete.", default=True
    )

    def check(self, values: Values) -> GenerationRequest:
        source = _source(values)
        top_logprobs = _top_logprobs(values)
        tools = placed(values["tools"] or ())
        calls = self.calls_of(values, tools, values["parallel_tool_calls"])
        unread = self.unread(values)
        text_end, ids = self._prompt(source, values, calls, tools)
        context, given = self.requested.files.max_model_len, self.given_length(values)
        check_context([ids], given, context, source)
        max_tokens = given or context - len(ids)
        thoughts = self._thoughts(values["thinking"] or Thinking(), text_end, max_tokens)
        request = self.request(
            values,
            [ids],
            max_tokens=max_tokens,
            logprobs=(top_logprobs, False),
            ignored_too=() if tools else ("parallel_tool_calls",),
        )
        request = replace(request, ignored=(*request.ignored, *unread))
        return self._with_answer(request, values, calls, thoughts)

    def _prompt(
        self, source: str, values: Values, calls: Calls | None, tools: Sequence[Tool]
    ) -> tuple[str, list[int]]:
        """The end of the prompt as text, and its token ids."""
        files = self.requested.files
        if _is_raw(source, values):
            ids: list[int] = values[source]
            if not ids:
                raise FieldError("must hold at least one token.", source, code="empty_array")
            return files.tokenizer.decode(ids[-_TAIL:], skip_special_tokens=False), ids
        text = self.conversation(values, calls, tools)
        return text, token_ids(files, text, "messages", special=False)

    def _thoughts(self, thinking: Thinking, prompt: str, max_tokens: int) -> Thoughts | None:
        files, budget = self.requested.files, thinking.budget_tokens
        if files.entry.thinking_marks is None:
            if budget is not None:
                raise FieldError(NO_THOUGHTS, "thinking.budget_tokens", code="unsupported_value")
            return None
        marks = Marks(*files.entry.thinking_marks)
        if thinking.type == DISABLED or marks.closed_in(prompt):
            return None
        is_open = marks.open_in(prompt)
        end_id = files.tokenizer.token_to_id(marks.end)
        if budget is not None and budget >= max_tokens:
            budget = None  # max_tokens ends the thoughts first
        required = thinking.type == ENABLED and not is_open
        return Thoughts(marks, is_open, required, budget, end_id)

    def _with_answer(
        self,
        request: GenerationRequest,
        values: Values,
        calls: Calls | None,
        thoughts: Thoughts | None,
    ) -> GenerationRequest:
        """The request with its `chat`, and with a constraint that leaves room for thoughts and
        calls."""
        files = self.requested.files
        constraint = request.constraint
        if calls is not None and constraint is not None and calls.choice.mode == REQUIRED:
            message = "cannot be combined with a tool_choice that requires a call."
            raise FieldError(message, constraint.named, code="conflicting_constraints")
        whitespace = values["json_whitespace"] or files.entry.json_whitespace
        given, looser = constraint, None
        try:
            constraint = answer_constraint(thoughts, calls, given, whitespace)
            if calls is not None and constraint is not None and (tools := calls.loosable):
                loose = answer_constraint(thoughts, calls.loosened(), given, whitespace)
                if loose is not None:
                    looser = Looser(loose, tuple(tool.schema_place for tool in tools))
        except BudgetError as error:
            message = "this model's thoughts cannot be counted: their end mark is not one token."
            path = "thinking.budget_tokens"
            raise FieldError(message, path, code="unsupported_value") from error
        sampling, hidden = request.sampling, list[str]()
        marks = set(calls.format.marks if calls else ())
        marks |= {thoughts.marks.begin, thoughts.marks.end} if thoughts else set()
        added = files.tokenizer.get_added_tokens_decoder().values()
        special = {token.content for token in added if token.special}
        if sampling.skip_special_tokens and marks & special:
            # The parser must find the marks, so it takes the other special tokens out itself.
            sampling = replace(sampling, skip_special_tokens=False)
            hidden = sorted(special - marks)
        if sampling.stop or sampling.stop_regex:
            spans = [calls.format.span] if calls else []
            if thoughts is not None and values["separate_reasoning"]:
                spans.append(thoughts.marks.span(is_open=thoughts.is_open))
            sampling = replace(sampling, stop_spans=spans)
        chat = ChatSettings(
            calls=calls,
            thoughts=thoughts,
            hidden=hidden,
            separate_reasoning=values["separate_reasoning"],
            stream_reasoning=values["stream_reasoning"],
        )
        return replace(request, constraint=constraint, looser=looser, sampling=sampling, chat=chat)


def _source(values: Values) -> str:
    """The field that holds the prompt. Raises FieldError."""
    given = [name for name in _PROMPTS if values[name] is not None]
    if not given:
        raise FieldError("this field is required.", "messages", code="missing_required_parameter")
    if len(given) > 1:
        raise FieldError(f"cannot be combined with {given[0]}; send one of them.", given[1])
    if not _is_raw(given[0], values):
        return given[0]
    for name in TEMPLATE_FIELDS:
        if values[name] is not None:
            raise FieldError(f"needs messages, not {given[0]}.", name)
    return given[0]


def _is_raw(source: str, values: Values) -> bool:
    """Whether the prompt is token ids already."""
    return source != "messages" or not values[source] or type(values[source][0]) is int


def _top_logprobs(values: Values) -> int | None:
    """How many likeliest tokens to return at each position; None without log probabilities."""
    top: int | None = values["top_logprobs"]
    if values["logprobs"]:
        return top or 0
    if top is not None:
        raise FieldError("needs logprobs: true; add it or leave this out.", "top_logprobs")
    return None
