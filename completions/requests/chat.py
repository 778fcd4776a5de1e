"""The body of POST /v1/chat/completions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, Self

from msgspec import structs

from completions.catalog.model_files import ModelFiles
from completions.chat.chat_style import find_chat_style
from completions.chat.conversation import cut_at_mark, mark_end, trust_tags
from completions.chat.grammar import BudgetError, Reasoning, ToolCalls, make_answer_constraint
from completions.chat.markers import find_marks
from completions.chat.prompt_text import PromptText
from completions.chat.reasoning import DISABLED, ENABLED
from completions.chat.template import ChatTemplateError
from completions.chat.tools import REQUIRED, Tool
from completions.contract.sampling import MAX_TOP_LOGPROBS
from completions.contract.stop_spans import StopSpan
from completions.exceptions import FieldError
from completions.requests.context import Context
from completions.requests.conversation import (
    NO_THOUGHTS,
    TEMPLATE_FIELDS,
    ConversationFields,
    Thinking,
)
from completions.requests.effort import EFFORT, EFFORTS, apply_effort
from completions.requests.fields.base import (
    BooleanField,
    ChoiceField,
    IntegerField,
    TextField,
)
from completions.requests.fields.chat.tools import assign_paths
from completions.requests.fields.ignored import FOREIGN_NAMES
from completions.requests.fields.lists import ListField
from completions.requests.fields.prompt import TO_CONTEXT, RawPromptField, TruncationField
from completions.requests.fields.tokens import MAX_CHARACTERS, TokenIdsField, encode_prompt
from completions.requests.generation import (
    ChatSettings,
    GenerationFields,
    GenerationRequest,
    Length,
    check_context,
    parse_length,
)
from completions.requests.past import Addition, Past, Turn
from completions.requests.past_text import continue_past, make_turn
from completions.requests.validation import Fallback

_PROMPTS = ("messages", "prompt", "input_ids")
_CHAT_FIELDS = (*TEMPLATE_FIELDS, EFFORT, "add_generation_prompt", "continue_final_message")
"""Fields that raw prompts do not take."""
_TAIL = 16
"""How many tokens at the end of a raw prompt are searched for the tag that opens the reasoning."""


class _Prompt(NamedTuple):
    end: str
    """The end of its text, or all of it."""
    token_ids: list[int]
    addition: Addition | None = None


class ChatRequestObject(GenerationFields, ConversationFields[GenerationRequest]):
    unsupported = {
        **FOREIGN_NAMES,
        "functions": "Use tools.",
        "function_call": "Use tool_choice.",
        **dict.fromkeys(
            ("reasoning", "enable_thinking"),
            'Use reasoning_effort, or thinking: {"type": "enabled"} or {"type": "disabled"}.',
        ),
        **dict.fromkeys(
            ("echo", "suffix", "best_of", "truncate_sequence", "continuation_token_ids"),
            "POST /v1/completions takes it.",
        ),
        "audio": "This service answers with text alone; omit it.",
        "prediction": "Omit it: it changes the speed, not the answer.",
        "web_search_options": "Use tools.",
        "chat_template": "The model's own template is used.",
    }

    prompt = RawPromptField("Instead of messages: text or token ids, used as they are.")
    input_ids = TokenIdsField("Instead of messages: token ids.")
    max_tokens = IntegerField(
        "Most tokens to generate, per choice, reasoning included; default: to the end of "
        "the context.",
        min_value=1,
    )
    max_completion_tokens = IntegerField("The same as max_tokens.", min_value=1)
    truncate_prompt_tokens = TruncationField(
        "vLLM's: keep the last so many tokens of the prompt; -1: as many as fit with max_tokens."
    )
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
    reasoning_effort = ChoiceField(
        "How much the model thinks: by its template's variable of this name, or else by its switch "
        "and a budget of tokens. x-ignored-params names it where it has no effect.",
        choices=EFFORTS,
    )
    thinking_token_budget = IntegerField("The same as thinking.budget_tokens.", min_value=1)
    add_generation_prompt = BooleanField("false: the prompt ends after the messages.")
    continue_final_message = BooleanField(
        "true: the answer continues the last message.", default=False
    )
    verbosity = TextField("No effect; ask for a short or a long answer in a message.")
    separate_reasoning = BooleanField(
        "Reasoning in reasoning and reasoning_content; false: in content, with its tags.",
        default=True,
    )
    stream_reasoning = BooleanField(
        "false: reasoning comes in one piece, when it is complete.", default=True
    )

    def make(self, values: Self, context: Context) -> GenerationRequest:
        files = context.model.files
        source = _find_source(values)
        unread = self.list_unread(values, context)
        values, unused = apply_effort(values, files)
        top_logprobs = _parse_top_logprobs(values)
        tools = assign_paths(values.tools or ())
        calls = self.make_calls(values, files, tools, values.parallel_tool_calls)
        prompt = self._make_prompt(source, values, context, calls, tools)
        ids = prompt.token_ids
        length = parse_length(context, values.max_tokens, values.max_completion_tokens)
        whole = len(ids)
        ids = _truncate(ids, values.truncate_prompt_tokens, length, files.max_model_len)
        check_context([ids], length, files.max_model_len, source)
        max_tokens = length or files.max_model_len - len(ids)
        thinking = values.thinking or Thinking()
        begun = values.messages[-1].get("content") if values.continue_final_message else None
        reasoning = _make_reasoning(
            thinking, files, prompt.end, begun or "", max_tokens, _find_budget(values)
        )
        request = self.make_request(
            values,
            context,
            [ids],
            length=Length(max_tokens, values.min_tokens, length is None),
            logprobs=(top_logprobs, False),
            ignored_too=("verbosity", *(() if tools else ("parallel_tool_calls",))),
        )
        request = replace(
            request,
            ignored=(*request.ignored, *unread, *unused),
            truncated_tokens=whole - len(ids),
            addition=prompt.addition,
        )
        return _add_answer(request, values, calls, reasoning)

    def count_tokens(self, values: Self, context: Context) -> int:
        """Return the number of tokens of the messages, which may be more than the context holds.
        Raises FieldError."""
        files = context.model.files
        values, _ = apply_effort(values, files)
        tools = assign_paths(values.tools or ())
        calls = self.make_calls(values, files, tools, values.parallel_tool_calls)
        text = self._render_prompt(values, files, calls, tools)
        return encode_prompt(files, text, at_least=MAX_CHARACTERS).count

    def _make_prompt(
        self,
        source: str,
        values: Self,
        context: Context,
        calls: ToolCalls | None,
        tools: Sequence[Tool],
    ) -> _Prompt:
        files, past = context.model.files, self.find_past(values, context)
        for name in ("continue_final_message", "truncate_prompt_tokens"):
            if past is not None and getattr(values, name):
                raise FieldError("cannot be combined with session.", name)
        if _is_raw(source, values):
            given: list[int] = getattr(values, source)
            if not given:
                raise FieldError("must hold at least one token.", source, code="empty_array")
            end = files.tokenizer.decode(given[-_TAIL:], skip_special_tokens=False)
            if past is None:
                return _Prompt(end, given)
            addition = Addition.make(past, Turn(token_ids=given))
            return _Prompt(end, [*past.token_ids, *given], addition)
        if past is not None:
            return self._continue_prompt(past, values, context, calls, tools)
        text = self._render_prompt(values, files, calls, tools)
        return _Prompt(text, encode_prompt(files, text).to_list())

    def _render_prompt(
        self,
        values: Self,
        files: ModelFiles,
        calls: ToolCalls | None,
        tools: Sequence[Tool],
    ) -> PromptText:
        continues, generates = values.continue_final_message, values.add_generation_prompt
        if continues and generates:
            message = "cannot be combined with add_generation_prompt. Send only one."
            raise FieldError(message, "continue_final_message")
        begins_answer = not continues and generates is not False
        if not continues:
            text = self.render_conversation(values, files, calls, tools, begins_answer)
        else:
            messages, tags = values.messages, find_chat_style(files).think_tags
            if tags is not None:
                messages = trust_tags(messages, tags)
            marked = values.change(messages=mark_end(messages))
            text = self.render_conversation(marked, files, calls, tools, begins_answer)
            try:
                text = cut_at_mark(text)
            except ChatTemplateError as error:
                raise FieldError(f"{error}.", "continue_final_message") from error
        return text

    def _continue_prompt(
        self,
        past: Past,
        values: Self,
        context: Context,
        calls: ToolCalls | None,
        tools: Sequence[Tool],
    ) -> _Prompt:
        """Return the prompt of a turn of a session: only the new messages become tokens, unless the
        template writes earlier ones in another way and the turn rebases."""
        files = context.model.files

        def render(messages: Sequence[Mapping[str, object]], is_all: bool) -> PromptText:
            begins_answer = is_all and values.add_generation_prompt is not False
            changed = values.change(messages=messages)
            return self.render_conversation(changed, files, calls, tools, begins_answer)

        continuation = continue_past(past, render, values.messages, files)
        turn = make_turn(past, continuation, context, values.on_drift or past.on_drift)
        ids = [*turn.token_ids] if turn.is_rebased else [*past.token_ids, *turn.token_ids]
        return _Prompt(continuation.so_far + turn.text, ids, Addition.make(past, turn))


def _truncate(
    ids: list[int], kept: int | None, length: int | None, max_model_len: int
) -> list[int]:
    """Return the last tokens of a prompt, as `truncate_prompt_tokens` asks; `length` is that of the
    answer, None if the request leaves it open."""
    if kept == TO_CONTEXT:
        kept = max(1, max_model_len - (1 if length is None else length))
    return ids if kept is None else ids[-kept:]


def _find_budget(values: ChatRequestObject) -> str:
    """Return the field that has the budget of reasoning."""
    unnamed = values.thinking_token_budget is None
    return "thinking.budget_tokens" if unnamed else "thinking_token_budget"


def _make_reasoning(
    thinking: Thinking,
    files: ModelFiles,
    prompt: str,
    begun: str,
    max_tokens: int,
    budget_path: str,
) -> Reasoning | None:
    """Return the reasoning of an answer to a prompt that ends with what the client has `begun` of
    it. Raises FieldError."""
    budget = thinking.budget_tokens
    style = find_chat_style(files)
    tags, form = style.think_tags, style.tool_format
    if tags is None:
        if budget is not None:
            raise FieldError(NO_THOUGHTS, budget_path, code="unsupported_value")
        return None
    if thinking.type == DISABLED or tags.is_closed_in(prompt):
        return None
    is_open = tags.is_open_in(prompt) or tags.is_open_after(begun)
    end_id = files.tokenizer.token_to_id(tags.end)
    if budget is not None and budget >= max_tokens:
        budget = None  # max_tokens ends the reasoning first
    required = thinking.type == ENABLED and not is_open
    lead = form.content[0] if form is not None else ""
    can_be_empty = form is not None and tags.end in form.unseen
    return Reasoning(tags, is_open, required, budget, end_id, lead, can_be_empty)


def _add_answer(
    request: GenerationRequest,
    values: ChatRequestObject,
    calls: ToolCalls | None,
    reasoning: Reasoning | None,
) -> GenerationRequest:
    """Return the request with its `chat`, and with a constraint that leaves room for reasoning
    and calls."""
    files = request.model.files
    constraint = request.constraint
    if calls is not None and constraint is not None and calls.choice.mode == REQUIRED:
        message = "cannot be combined with a tool_choice that requires a call."
        raise FieldError(message, constraint.error_path, code="conflicting_constraints")
    whitespace = values.json_whitespace or files.entry.json_whitespace
    inner, fallback = constraint, None
    form = find_chat_style(files).tool_format
    try:
        constraint = make_answer_constraint(reasoning, calls, inner, whitespace, form)
        if calls is not None and constraint is not None and (tools := calls.relaxable_tools):
            loose = make_answer_constraint(reasoning, calls.relax(), inner, whitespace, form)
            if loose is not None:
                fallback = Fallback(loose, tuple(tool.schema_path for tool in tools))
    except BudgetError as error:
        message = "this model's reasoning cannot be counted: its end tag is not one token."
        raise FieldError(message, _find_budget(values), code="unsupported_value") from error
    sampling, hidden = request.job.sampling, list[str]()
    unseen, around = (form.hidden, form.around) if form else ((), ("", ""))
    if reasoning is not None and not values.separate_reasoning:
        unseen = tuple(text for text in unseen if text not in reasoning.tags.delimiters)
    delimiters = {mark for text in unseen for mark in find_marks(text)}
    delimiters |= set(calls.format.delimiters) if calls else set()
    delimiters |= set(reasoning.tags.delimiters) if reasoning else set()
    added = files.tokenizer.get_added_tokens_decoder().values()
    special = {token.content for token in added if token.special}
    if sampling.skip_special_tokens and delimiters & special:
        # The parser must find the delimiters, so it takes the other special tokens out itself.
        sampling = structs.replace(sampling, skip_special_tokens=False)
        hidden = sorted(special - delimiters)
    if sampling.stop or sampling.stop_regex:
        spans = calls.format.make_spans([tool.name for tool in calls.tools]) if calls else []
        if reasoning is not None and values.separate_reasoning:
            spans.append(reasoning.tags.make_span(is_open=reasoning.is_open))
        spans += [StopSpan(text[:-1], text[-1]) for text in (*unseen, *filter(None, around))]
        sampling = structs.replace(sampling, stop_spans=tuple(spans))
    chat = ChatSettings(
        calls=calls,
        calls_first=inner is not None,
        reasoning=reasoning,
        hidden=hidden,
        unseen=unseen,
        around=around,
        separate_reasoning=values.separate_reasoning,
        stream_reasoning=values.stream_reasoning,
    )
    request = replace(request, constraint=constraint, fallback=fallback, chat=chat)
    return request.change_job(sampling=sampling)


def _find_source(values: ChatRequestObject) -> str:
    """Return the field that holds the prompt. Raises FieldError."""
    sources = [name for name in _PROMPTS if getattr(values, name) is not None]
    if not sources:
        raise FieldError("this field is required.", "messages", code="missing_required_parameter")
    if len(sources) > 1:
        raise FieldError(f"cannot be combined with {sources[0]}. Send only one.", sources[1])
    if not _is_raw(sources[0], values):
        return sources[0]
    for name in _CHAT_FIELDS:
        default = name == "add_generation_prompt"
        if getattr(values, name) not in (None, default):
            raise FieldError(f"needs messages, not {sources[0]}.", name)
    return sources[0]


def _is_raw(source: str, values: ChatRequestObject) -> bool:
    """Return whether the prompt is token ids already."""
    return source != "messages" or not values.messages or type(values.messages[0]) is int


def _parse_top_logprobs(values: ChatRequestObject) -> int | None:
    """Return how many likeliest tokens to return at each position; None without log
    probabilities."""
    top: int | None = values.top_logprobs
    if values.logprobs:
        return top or 0
    if top is not None:
        raise FieldError("needs logprobs: true; add it or leave this out.", "top_logprobs")
    return None
