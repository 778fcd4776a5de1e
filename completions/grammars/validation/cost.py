"""What a grammar costs: follows it for a few tokens, to refuse one that fails or is slow before it
is queued.

A grammar may compile in a millisecond and then delay every batch by a tenth of a second per token.
"""

import json
import random
import re
import time

from llguidance import LLInterpreter, LLMatcher, LLTokenizer

from completions.contract.llguidance_limits import VALIDATION_LIMITS
from completions.grammars import tokens
from completions.grammars.compiler import Compiler
from completions.grammars.exceptions import GrammarError
from completions.grammars.messages import explain_error

STEPS = 32
UNCOUNTED_SECONDS = 0.0003
"""Processor seconds per token below which work is not counted: no machine is so fast that it does
the most work in a tenth of the usual time."""
_WEIGHTS = {"trie_nodes_walked": 1, "lexer_cost": 12, "all_items": 150}
"""The cost of what llguidance counts, in nodes of its trie of tokens. A node takes 5.5 ns of a
2.5 GHz core; the weights fit masks of 61 grammars."""
_SOMETHING = re.compile(rb"[^\0]")


def check_cost(grammar: str, compiler: Compiler) -> None:
    """Follow a grammar that compiles along one random path. Raises GrammarError.

    The path is the same each time, and so is the work counted on it. Only this thread's processor
    time counts, and it decides nothing that the work should.
    """
    compiled, limits = compiler.compile(grammar), compiler.limits
    matcher, seconds = compiled.matcher, compiled.compile_seconds
    if seconds > limits.compile_seconds:
        raise GrammarError(
            f"too complex: compiling it takes {seconds:.1f} seconds; send a simpler one"
        )
    began = time.thread_time()
    if len(matcher.compute_ff_bytes()) > limits.max_forced:
        raise GrammarError(
            f"its beginning forces more than {limits.max_forced} bytes of text; "
            "send that text in the prompt"
        )
    tokenizer = tokens.load(compiler.tokens)
    path = _follow(matcher, tokenizer)
    if matcher.is_error():
        raise GrammarError(explain_error(matcher.get_error()))
    mean = (compiled.mask_seconds + time.thread_time() - began) / max(len(path), 1)
    if mean > limits.step_seconds:
        cost = f"{mean * 1000:.0f} ms for each token"
        raise GrammarError(f"too complex: it takes {cost}; make it less ambiguous")
    if mean > UNCOUNTED_SECONDS:
        work = _measure_work(grammar, tokenizer, path)
        if work > limits.step_work:
            message = f"{work:,} steps for each token, more than {limits.step_work:,}"
            raise GrammarError(f"too complex: it takes {message}; make it less ambiguous")


def _follow(matcher: LLMatcher, tokenizer: LLTokenizer) -> list[int | None]:
    """Take random tokens, starting over after each end. Returns them; None starts over."""
    choices = random.Random(0)  # noqa: S311 - any path will do
    ends = set(tokenizer.eos_tokens)
    path: list[int | None] = []
    for _ in range(STEPS):
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            break
        token = _choose_token(mask, choices)
        if matcher.is_stopped() or token in ends:
            matcher.reset()
            path.append(None)
        elif matcher.consume_token(token):
            path.append(token)
        else:
            break
    return path


def _measure_work(grammar: str, tokenizer: LLTokenizer, path: list[int | None]) -> int:
    """Return what llguidance counts along a path, per token, in nodes of the trie of tokens."""
    start = LLInterpreter(
        tokenizer,
        grammar,
        enable_backtrack=False,
        enable_ff_tokens=False,
        log_level=0,
        limits=VALIDATION_LIMITS,
    )
    start.start_without_prompt()
    following, work, steps = start.deep_copy(), 0, 0
    for token in path:
        _, report = following.compute_mask()
        steps += 1
        for entry in json.loads(report)["progress"]:
            counts = entry.get("stats", {})
            work += sum(weight * counts.get(name, 0) for name, weight in _WEIGHTS.items())
        if token is None:
            following = start.deep_copy()
            continue
        try:
            following.commit_token(token)
        except ValueError:  # unlike a matcher, it takes no token by id that is forced
            break
    return work // max(steps, 1)


def _choose_token(mask: bytes, choices: random.Random) -> int:
    """Return an allowed token near a random place of the mask."""
    match = _SOMETHING.search(mask, choices.randrange(len(mask))) or _SOMETHING.search(mask)
    assert match is not None, "a matcher that is not in error allows something"
    byte = match[0][0]
    return 8 * match.start() + choices.choice([bit for bit in range(8) if byte >> bit & 1])
