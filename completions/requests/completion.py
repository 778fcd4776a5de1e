"""The body of POST /v1/completions."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import NamedTuple, Self

from completions.catalog.model_files import ModelFiles
from completions.contract.job_request import Task
from completions.contract.sampling import INTEGERS, MAX_TOP_LOGPROBS
from completions.exceptions import FieldError
from completions.requests.context import Context
from completions.requests.fields.base import (
    BooleanField,
    IntegerField,
    ObjectField,
    TextField,
)
from completions.requests.fields.continuations import (
    Continuations,
    ContinuationsField,
    check_scoring,
    list_without_effect,
    spread_continuations,
)
from completions.requests.fields.ignored import FOREIGN_NAMES
from completions.requests.fields.lists import ListField
from completions.requests.fields.prompt import TO_CONTEXT, PromptField, TruncationField
from completions.requests.fields.tokens import encode_text
from completions.requests.generation import (
    GenerationFields,
    GenerationRequest,
    Length,
    Prompts,
    check_choices,
    check_context,
    parse_length,
)
from completions.requests.past import Addition, Turn


class CompletionRequestObject(GenerationFields):
    unsupported = {
        **FOREIGN_NAMES,
        "messages": "POST them to /v1/chat/completions.",
        "input_ids": "Use prompt.",
    }

    prompt = PromptField(
        "Token ids, or up to 256 arrays of them; nothing is prepended. Texts where the "
        "model's capability `text_prompts` says so.",
        required=True,
    )
    max_tokens = IntegerField(
        "Most tokens to generate, per choice; 0 only with echo.", range=INTEGERS["max_tokens"]
    )
    max_completion_tokens = IntegerField("The same as max_tokens.", min_value=0)
    best_of = IntegerField(
        "Candidates per prompt, of which the n with the highest mean log probability "
        "per token are returned, the best first; all are counted. With stream, at most n.",
        min_value=1,
        max_value=INTEGERS["n"].high,
    )
    echo = BooleanField(
        "Put the prompt's text before the completion's; `skip_special_tokens` applies to both.",
        default=False,
    )
    logprobs = IntegerField(
        "Natural log probabilities, under the unmodified distribution, of each token (with echo, "
        "of the prompt's too) and of this many of the likeliest ones. Tokens that a stop string "
        "cuts off have none.",
        min_value=0,
        max_value=MAX_TOP_LOGPROBS,
    )
    truncate_sequence = BooleanField(
        "Cut the beginning of prompts that do not fit the context with max_tokens.", default=False
    )
    continuation_token_ids = ContinuationsField(
        "Score these instead of generating: one array of token ids, several for every prompt, or "
        "such an array for each prompt. Each is a choice with `logprobs` and `score`: the sum, "
        "and under a constraint `forbidden_at`, the index of its first token that is not allowed."
    )
    truncate_prompt_tokens = TruncationField(
        "vLLM's: keep the last so many tokens of each prompt; -1 is the same as truncate_sequence."
    )
    suffix = TextField("Text that follows the completion; for models with the capability `fim`.")
    parallel_tool_calls = BooleanField("No effect.")
    tools = ListField(
        'No effect, and only with tool_choice "none"; chat completions use them.',
        child=ObjectField(),
    )
    tool_choice = TextField('Only "none", which has no effect.')

    def make(self, values: Self, context: Context) -> GenerationRequest:
        _check_tools(values)
        length = parse_length(context, values.max_tokens, values.max_completion_tokens)
        max_tokens: int = values.max_tokens if length is None else length
        past = self.find_past(values, context)
        if (scored := values.continuation_token_ids) is not None:
            if past is not None:
                raise FieldError("cannot be combined with session.", "continuation_token_ids")
            return self._make_scoring(values, context, length, scored)
        _check_echo(values, max_tokens)
        _check_best_of(values)
        files = context.model.files
        longest = files.max_model_len
        kept, min_tokens = values.truncate_prompt_tokens, values.min_tokens
        truncates = values.truncate_sequence or kept == TO_CONTEXT
        if truncates:
            if min_tokens <= max_tokens:  # else a length beyond the context is refused
                min_tokens = min(min_tokens, longest - 1)
            max_tokens = min(max_tokens, longest - 1)
        room = longest - max_tokens if truncates else None
        if kept not in (None, TO_CONTEXT):
            room = kept if room is None else min(kept, room)
        if past is not None:
            _check_turn(values)
            addition = Addition.make(past, Turn(token_ids=values.prompt[0]))
            values = values.change(prompt=[[*past.token_ids, *values.prompt[0]]])
        prompts, truncated = _make_prompts(values, files, room)
        check_context(prompts, max_tokens, longest)
        request = self.make_request(
            values,
            context,
            prompts,
            length=Length(max_tokens, min_tokens, length is None),
            logprobs=(values.logprobs, values.echo),
            ignored_too=("parallel_tool_calls", "tools", "tool_choice"),
        )
        request = replace(request, echo=values.echo, truncated_tokens=truncated)
        return request if past is None else replace(request, addition=addition)

    def _make_scoring(
        self, values: Self, context: Context, length: int | None, scored: Continuations
    ) -> GenerationRequest:
        """Return a request that scores continuations and generates nothing."""
        check_scoring(values, length)
        files = context.model.files
        continuations = spread_continuations(scored, len(values.prompt))
        longest = max(map(len, chain.from_iterable(continuations)))
        room = files.max_model_len - longest if values.truncate_sequence else None
        if values.truncate_prompt_tokens == TO_CONTEXT:
            room = files.max_model_len - longest
        elif values.truncate_prompt_tokens is not None:
            room = values.truncate_prompt_tokens
        prompts, truncated = _make_prompts(values, files, room)
        for prompt, several in zip(prompts, continuations, strict=True):
            check_context([prompt], max(map(len, several)), files.max_model_len)
        request = self.make_request(
            values.change(min_tokens=0, ignore_eos=False, allowed_token_ids=None),
            context,
            prompts,
            length=Length(0, 0, is_default=False),
            logprobs=(values.logprobs or 0, False),
            ignored_too=("parallel_tool_calls", "tools", "tool_choice"),
        )
        unused = (*request.ignored, *list_without_effect(context.given))
        scored_ids = tuple(tuple(map(tuple, several)) for several in continuations)
        request = request.change_job(task=Task.SCORE, continuations=scored_ids)
        ignored = tuple(dict.fromkeys(unused))
        return replace(request, truncated_tokens=truncated, ignored=ignored)


def _make_prompts(
    values: CompletionRequestObject, files: ModelFiles, max_prompt_tokens: int | None
) -> tuple[Prompts, int]:
    """Return the prompts, cut to `max_prompt_tokens` tokens and with the suffix where the model
    reads it; and how many tokens were cut."""
    frame = _make_frame(values.suffix, files)
    prompts: Prompts = values.prompt
    truncated = 0
    if max_prompt_tokens is not None and max_prompt_tokens > frame.length:
        cut = [prompt[frame.length - max_prompt_tokens :] for prompt in prompts]
        truncated = sum(map(len, prompts)) - sum(map(len, cut))
        prompts = cut
    return [frame.wrap(prompt) for prompt in prompts], truncated


def _check_turn(values: CompletionRequestObject) -> None:
    """Raise FieldError for what a turn of a session cannot have: its tokens stay as they are."""
    for name in ("suffix", "truncate_sequence", "truncate_prompt_tokens"):
        if getattr(values, name):
            raise FieldError("cannot be combined with session.", name)
    if len(values.prompt) > 1:
        raise FieldError("must be one prompt: a turn of a session has one.", "prompt")


def _check_tools(values: CompletionRequestObject) -> None:
    for name in ("tools", "tool_choice"):
        if getattr(values, name) is not None and values.tool_choice != "none":
            message = "POST /v1/chat/completions to call tools, or send tool_choice: none."
            raise FieldError(message, name, code="unsupported_parameter")


def _check_echo(values: CompletionRequestObject, max_tokens: int) -> None:
    if max_tokens == 0 and not values.echo:
        message = "must be at least 1 without echo."
        raise FieldError(message, "max_tokens", code="integer_below_min_value")
    if max_tokens == 0 and values.return_hidden_states:
        raise FieldError("needs a token to be generated; max_tokens is 0.", "return_hidden_states")
    if values.echo and values.suffix is not None:
        raise FieldError("cannot be combined with echo.", "suffix")


def _check_best_of(values: CompletionRequestObject) -> None:
    best_of = values.best_of
    if best_of is None:
        return
    if best_of < values.n:
        raise FieldError(f"is {best_of}; it must be at least n ({values.n}).", "best_of")
    if values.stream and best_of > values.n:
        message = (
            f"is {best_of}, but a stream cannot choose among candidates; send {values.n} (n), "
            "or leave out one of best_of and stream."
        )
        raise FieldError(message, "best_of")
    check_choices(len(values.prompt), best_of, "best_of")


class _Frame(NamedTuple):
    """Token ids around a prompt, so that the model fills the gap before the suffix: prefix, suffix,
    middle as in Bavarian et al. 2022 (arXiv 2207.14255)."""

    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def length(self) -> int:
        return len(self.before) + len(self.after)

    def wrap(self, prompt: Sequence[int]) -> Sequence[int]:
        return [*self.before, *prompt, *self.after] if self.length else prompt


def _make_frame(suffix: str | None, model: ModelFiles) -> _Frame:
    """Return the frame of the prompts of a request with this suffix. Raises FieldError."""
    if suffix is None:
        return _Frame()
    if model.fim_token_ids is None:
        message = (
            "this model cannot fill in text. Leave this out, or use a model with the capability "
            "`fim`."
        )
        raise FieldError(message, "suffix", code="unsupported_parameter")
    prefix_id, suffix_id, middle_id = model.fim_token_ids
    ids = encode_text(model, suffix, "suffix", special=False)
    return _Frame((prefix_id,), (suffix_id, *ids, middle_id))
