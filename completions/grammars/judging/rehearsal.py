"""Following a grammar for a few tokens, to refuse one that fails or is slow before it is queued.

A grammar may compile in a millisecond and then take a tenth of a second for each token, which
delays every batch that it is in.
"""

import random
import re
import time

from llguidance import LLMatcher, LLTokenizer

from completions.grammars import tokens
from completions.grammars.compiler import Compiler, brief
from completions.grammars.exceptions import GrammarError

STEPS = 32
_SOMETHING = re.compile(rb"[^\0]")


def rehearse(grammar: str, compiler: Compiler) -> None:
    """Follow a grammar that compiles along one random path. Raises GrammarError.

    The path is the same each time. Only this thread's processor time counts.
    """
    compiled = compiler.compile(grammar)
    matcher, seconds = compiled.matcher, compiled.compile_seconds
    if seconds > compiler.limits.compile_seconds:
        raise GrammarError(
            f"too complex: compiling it takes {seconds:.1f} seconds; send a simpler one"
        )
    began = time.thread_time()
    if len(matcher.compute_ff_bytes()) > compiler.limits.max_forced:
        message = f"its beginning forces more than {compiler.limits.max_forced} bytes of text"
        raise GrammarError(message)
    taken = _follow(matcher, tokens.load(compiler.tokens))
    if matcher.is_error():
        raise GrammarError(brief(matcher.get_error()))
    mean = (compiled.mask_seconds + time.thread_time() - began) / max(taken, 1)
    if mean > compiler.limits.step_seconds:
        cost = f"{mean * 1000:.0f} ms for each token"
        raise GrammarError(f"too complex: it takes {cost}; make it less ambiguous")


def _follow(matcher: LLMatcher, tokenizer: LLTokenizer) -> int:
    """Take random tokens, starting over after each end. Returns the number of steps."""
    choices = random.Random(0)  # noqa: S311 - any path will do
    ends = set(tokenizer.eos_tokens)
    for step in range(STEPS):
        mask = matcher.compute_bitmask()
        if matcher.is_error():
            return step
        token = _some_token(mask, choices)
        if matcher.is_stopped() or token in ends:
            matcher.reset()
        elif not matcher.consume_token(token):
            return step
    return STEPS


def _some_token(mask: bytes, choices: random.Random) -> int:
    """An allowed token near a random place of the mask."""
    found = _SOMETHING.search(mask, choices.randrange(len(mask))) or _SOMETHING.search(mask)
    assert found is not None, "a matcher that is not in error allows something"
    byte = found[0][0]
    return 8 * found.start() + choices.choice([bit for bit in range(8) if byte >> bit & 1])
