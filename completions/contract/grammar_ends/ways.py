"""Ways: tokens that lead to an accepted end, checked and adapted."""

from typing import Final

from llguidance import LLMatcher

from completions.contract.grammar_ends.tokens import EndTokens, Way

MAX_CHECKED: Final = 8192
"""Tokens that a search for a suffix hands to the matcher; twice as many take some 3 ms."""
_GLANCE: Final = 16
"""How many of a suffix it is handed first: most suffixes fail there."""


def reuse_way(matcher: LLMatcher, tokens: EndTokens, way: Way, token_id: int) -> Way | None:
    """Return a way that follows `token_id` if it is near at hand: none is needed, or the token is a
    part of the text of `way`, or stands beside it as in a string. `matcher` stands before the
    token, and is not copied."""
    first = (token_id,)
    if leads_to_end(matcher, tokens, first):
        return ()
    text, whole = tokens.spell(first), tokens.spell(way)
    rest = tokens.tokenize(whole[len(text) :]) if whole.startswith(text) else ()
    for reused in (rest, way):
        if reused and leads_to_end(matcher, tokens, first + reused):
            return reused
    return None


def adapt_way(matcher: LLMatcher, tokens: EndTokens, way: Way) -> Way | None:
    """Return a way that goes on behind a part of `way`, perhaps after one more token that closes
    something; None if there is none. It takes a tenth of a search, and usually succeeds. `matcher`
    stands behind a token that :func:`reuse_way` found nothing for."""
    return find_suffix(matcher, tokens, way) or _find_closed_suffix(matcher, tokens, way)


def find_suffix(
    matcher: LLMatcher, tokens: EndTokens, way: Way, most: int = MAX_CHECKED
) -> Way | None:
    """Return tokens of the shortest end of a way's text that leads to an end from where `matcher`
    stands. The matcher is handed `most` tokens; if these do not suffice, as many again of the ends
    that close something."""
    split, mask = tokens.split(way), matcher.compute_bitmask()
    starts = reversed(range(max(0, len(split) - 2 * most), len(split)))
    possible = [start for start in starts if is_set(mask, split[start])]
    closing = [start for start in possible if split[start] in tokens.order_of_closers]
    for chosen in (possible, closing):
        left = most
        for start in chosen:
            glance = list(split[start : start + _GLANCE])
            left -= len(glance)
            if matcher.validate_tokens(glance) == len(glance):
                end = split[start:]
                left -= len(end)
                if leads_to_end(matcher, tokens, end):
                    return shorten_way(matcher, tokens, end)
            if left <= 0:
                break
        if left > 0:
            break
    return None


def _find_closed_suffix(matcher: LLMatcher, tokens: EndTokens, way: Way) -> Way | None:
    """Return a token that closes something, and a suffix that leads to an end behind it."""
    mask = matcher.compute_bitmask()
    for prefix in tokens.order_of_closers:
        if not is_set(mask, prefix):
            continue
        copy = matcher.deep_copy()
        copy.consume_token(prefix)
        if is_accepting(copy):
            return (prefix,)
        if copy.compute_bitmask() == mask:
            continue  # it closed nothing
        end = find_suffix(copy, tokens, way, MAX_CHECKED // len(tokens.order_of_closers))
        if end is not None:
            return shorten_way(matcher, tokens, (prefix, *end))
    return None


def shorten_way(matcher: LLMatcher, tokens: EndTokens, way: Way) -> Way:
    """Return a way with the same text in fewer tokens, if there is one."""
    shorter = tokens.shorten(way)
    return shorter if len(shorter) < len(way) and leads_to_end(matcher, tokens, shorter) else way


def leads_to_end(matcher: LLMatcher, tokens: EndTokens, way: Way) -> bool:
    """Return whether tokens lead from where `matcher` stands to an accepted end: whether the
    model's end may follow them, which takes a tenth of the time of a copy that consumes them. A
    matcher that has stopped says no.

    Of several ends, any will do: llguidance takes each of them where the grammar accepts, and
    nowhere else, also where the grammar names one. A request that bans one may still end there."""
    ids = [*way, tokens.end_ids[0]]
    return bool(matcher.validate_tokens(ids) == len(ids))


def is_accepting(matcher: LLMatcher) -> bool:
    return not matcher.is_error() and bool(matcher.is_accepting())


def is_broken(matcher: LLMatcher) -> bool:
    """Return whether a copy of the matcher met a limit of the lexer, which ends all of them."""
    matcher.compute_bitmask()
    return bool(matcher.is_error())


def is_set(mask: bytes, token_id: int) -> bool:
    """Return whether a mask allows a token."""
    return bool(mask[token_id >> 3] >> (token_id & 7) & 1)
