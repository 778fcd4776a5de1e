"""Bad words: tokens that may not follow an output. No torch."""

from completions.contract.sampling import SamplingParams
from workers.engine.core.sequence import Sequence


def list_bad_tokens(seq: Sequence, num_drafted: int = 0) -> frozenset[int]:
    """Return the tokens that would complete a bad word of the output and ``num_drafted`` drafted
    tokens. None that ``allowed_token_ids`` has, if they are all that it has."""
    words = seq.sampling.bad_words
    if not words:
        return frozenset()
    longest = max(map(len, words)) - 1
    output = seq.token_ids[seq.prompt_len :][-longest:] if longest else []
    output += seq.draft.token_ids[:num_drafted]
    bad = {word[-1] for word in words if _ends_with(output, word[:-1])}
    allowed = seq.sampling.allowed_token_ids
    return frozenset() if allowed and bad.issuperset(allowed) else frozenset(bad)


def list_never_allowed(sampling: SamplingParams, vocab_size: int) -> frozenset[int]:
    """Return the tokens that may not follow any output: bad words of one token, and all that
    ``allowed_token_ids`` lacks."""
    bad = {word[0] for word in sampling.bad_words if len(word) == 1}
    if not sampling.allowed_token_ids:
        return frozenset(bad)
    return frozenset(range(vocab_size)).difference(sampling.allowed_token_ids) | bad


def _ends_with(tokens: list[int], end: tuple[int, ...]) -> bool:
    return not end or tuple(tokens[-len(end) :]) == end
