"""DRY ("don't repeat yourself"): a penalty for tokens that would continue a repetition."""

from collections.abc import Iterable
from collections.abc import Sequence as Rows

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from workers.engine.backends.base.transfers import floats_to_device, to_device
from workers.engine.core.sequence import Sequence
from workers.engine.sampling.logits_processors import LogitsProcessor, PlacedRow

_LONGEST = 50
"""The longest repetition that counts, as in mistral.rs."""

_LARGEST = 1e30
"""The largest penalty. A larger one would forbid even the only token that a grammar allows."""

Ints = NDArray[np.int64]


def breaker_ids(tokenizer: Tokenizer, breakers: Iterable[str]) -> frozenset[int]:
    """Return the last token of each breaker, encoded after a letter so that it does not begin a
    word."""
    return frozenset(
        tokenizer.encode(f"a{breaker}", add_special_tokens=False).ids[-1] for breaker in breakers
    )


class Dry(LogitsProcessor):
    """The penalty of p-e-w (text-generation-webui, pull request 5637) in the form of mistral.rs:

    z(next) -= multiplier * base ** (length - allowed_length)   where length >= allowed_length

    over prompt and output. A token is penalised if it followed an earlier occurrence of the last
    token; ``length`` is how many tokens before it equal those at the end of the sequence. The
    count stops at a sequence breaker. Among several occurrences the longest counts. Breakers are
    never penalised.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[int, Repetitions, int]] = []
        self._repetitions: dict[Sequence, Repetitions] = {}

    def set_rows(self, rows: Rows[PlacedRow]) -> None:
        self._repetitions = {s: r for s, r in self._repetitions.items() if not s.finished}
        for _, (seq, _, _) in rows:
            if seq not in self._repetitions:
                self._repetitions[seq] = Repetitions(seq)
        self._rows = [(row, self._repetitions[seq], drafted) for row, (seq, drafted, _) in rows]

    def apply(self, logits: Tensor) -> None:
        penalised = [repetitions.after(num_drafted) for _, repetitions, num_drafted in self._rows]
        rows = np.repeat([row for row, _, _ in self._rows], [len(ids) for ids, _ in penalised])
        ids = np.concatenate([ids for ids, _ in penalised])
        penalties = np.concatenate([penalties for _, penalties in penalised])
        placed_rows, placed_ids = to_device([rows, ids], logits.device)
        placed = floats_to_device(penalties.astype(np.float64), logits.device).float()
        logits[placed_rows, placed_ids] -= placed

    def needs_tokens(self) -> bool:
        return True  # repetitions are looked for here, up to the last token

    def launch(self, logits: Tensor, pending: Tensor | None) -> None:
        assert pending is None
        self.apply(logits)


class Repetitions:
    """Earlier occurrences of a sequence's end, and how long each of them is.

    The length of the match at a position is one more than at the position before it, one step
    earlier. So a step compares each token with the last one, and adds 1 for each that is equal.
    """

    def __init__(self, sequence: Sequence) -> None:
        self._sequence = sequence
        self._tokens: Ints = np.empty(sequence.max_total_tokens, dtype=np.int64)
        self._num_tokens = 0
        self._breakers: Ints = np.array(sorted(sequence.rules.dry_breakers), dtype=np.int64)
        # _lengths[i]: how many tokens up to i equal those at the end; 0 except at _places.
        self._lengths = np.zeros(sequence.max_total_tokens, dtype=np.int64)
        self._places: Ints = np.empty(0, dtype=np.int64)

    def after(self, num_drafted: int) -> tuple[Ints, NDArray[np.float32]]:
        """Return the ids to penalise after the sequence and its first ``num_drafted`` drafted
        tokens, and the penalty of each."""
        self._update()
        if not num_drafted:
            return self._penalties()
        end, places = self._num_tokens, self._places
        lengths = self._lengths[places]
        self._read(self._sequence.draft.token_ids[:num_drafted])
        penalties = self._penalties()
        self._lengths[self._places] = 0
        self._lengths[places] = lengths
        self._places, self._num_tokens = places, end
        return penalties

    def _penalties(self) -> tuple[Ints, NDArray[np.float32]]:
        params = self._sequence.sampling
        following = self._tokens[self._places + 1]
        lengths = self._lengths[self._places]
        kept = (lengths >= params.dry_allowed_length) & ~np.isin(following, self._breakers)
        ids, inverse = np.unique(following[kept], return_inverse=True)
        longest = np.zeros(len(ids), dtype=np.int64)
        np.maximum.at(longest, inverse, lengths[kept])
        with np.errstate(over="ignore"):
            powers = np.power(float(params.dry_base), longest - params.dry_allowed_length)
            penalties = np.minimum(params.dry_multiplier * powers, _LARGEST)
        return ids, penalties.astype(np.float32)

    def _update(self) -> None:
        self._read(self._sequence.token_ids[self._num_tokens :])

    def _read(self, token_ids: Rows[int]) -> None:
        first, end = self._num_tokens, self._num_tokens + len(token_ids)
        self._tokens[first:end] = token_ids
        self._num_tokens = end
        if end - first > _LONGEST:  # tokens further back no longer matter
            self._lengths[self._places] = 0
            self._places = self._places[:0]
            first = end - _LONGEST
        for last in range(first, end):
            self._extend(last)

    def _extend(self, last: int) -> None:
        """Update the lengths of all matches for the tokens up to ``last``."""
        places = np.flatnonzero(self._tokens[:last] == self._tokens[last])
        lengths = np.ones(len(places), dtype=np.int64)
        if last > 0 and self._tokens[last - 1] not in self._breakers:
            inner = places > 0
            lengths[inner] += self._lengths[places[inner] - 1]
        self._lengths[self._places] = 0
        self._lengths[places] = np.minimum(lengths, _LONGEST)
        self._places = places
