import numpy as np
import torch

from workers.engine.grammar.mask import Bits, GrammarMask, allow_only, forbid


def bits(*lines: set[int], words: int = 3) -> Bits:
    """A line for each set of token ids."""
    packed = np.zeros((len(lines), words), dtype=np.int32)
    for line, token_ids in zip(packed, lines, strict=True):
        for token_id in token_ids:
            line.view(np.uint32)[token_id // 32] |= np.uint32(1 << token_id % 32)
    return packed


def ids(mask: Bits) -> list[set[int]]:
    return [set(np.unpackbits(x.view(np.uint8), bitorder="little").nonzero()[0]) for x in mask]


def test_a_mask_touches_its_rows_only() -> None:
    logits = torch.zeros(2, 3)
    GrammarMask([1], bits({0, 2}), {}).apply(logits)
    assert logits.tolist() == [[0, 0, 0], [0, -np.inf, 0]]
    GrammarMask([0, 1], bits({0, 2}, {0, 2}), {}).apply(logits)
    assert logits.isneginf().tolist() == [[False, True, False]] * 2


def test_what_is_forbidden_leaves_the_other_tokens_and_the_other_lines() -> None:
    allowed = bits({1, 31, 40, 95}, {1, 31, 40, 95}, {1, 2})
    forbid(allowed, [(0, frozenset({31, 95, 5})), (1, frozenset()), (2, frozenset({1}))])
    assert ids(allowed) == [{1, 40}, {1, 31, 40, 95}, {2}]


def test_a_line_of_which_nothing_would_be_left_stays() -> None:
    allowed = bits({31, 95}, {31, 7})
    ends = frozenset({31, 95})
    forbid(allowed, [(0, ends), (1, ends)])
    assert ids(allowed) == [{31, 95}, {7}]


def test_one_token_can_be_all_that_is_allowed() -> None:
    allowed = bits({1, 31, 40})
    allow_only(allowed[0], 63)
    assert ids(allowed) == [{63}]
