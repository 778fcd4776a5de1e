"""Checks on a miniature model that forwards over pages compute what ``generate`` does.

The miniature of a model, small, random and with short windows, runs over pages in batches of
sequences of unequal length, longer than every length that the configuration names. Its logits are
compared, token by token, with the logits of its own ``generate``.
"""

from collections.abc import Callable, Collection
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from workers.engine.backends.base.lora import Adapters
from workers.engine.backends.base.paged import PagedModel, StatefulModules
from workers.engine.backends.compressed.compressors import wrap_compressors
from workers.engine.backends.cpu.decoder import NativeDecoder
from workers.engine.backends.cpu.kv_cache import pack_keys
from workers.engine.backends.cpu.layers.direct_weights import finding_direct_weights
from workers.engine.backends.cpu.layers.packed_linear import pack_linears
from workers.engine.backends.fallback.model import FallbackModel, use_own_attention
from workers.engine.backends.sparse.indexers import use_pages
from workers.engine.checkpoints.parity.miniature import choose_every_expert, make_miniature
from workers.engine.checkpoints.parity.probe import find_states, probe
from workers.engine.checkpoints.parity.trial import NOISES, TOLERANCE, Batches, distance
from workers.engine.core.attention_backend import AttentionBackend
from workers.engine.exceptions import UnsupportedModel

P = ParamSpec("P")
R = TypeVar("R")

_PROMPTS = (69, 21, 9)
_DECODED = 5
_CHUNKS = (40, 13, 9)
"""The lengths of prompts in a first batch, and the tokens after them: past windows and chunks,
and past the length of the rotary embedding in mid-decode."""
_DRAWS = 3
"""Of random weights."""


def single_threaded(function: Callable[P, R]) -> Callable[P, R]:
    """Run with one thread: small tensors gain nothing from more, and lose much on busy cores."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        num_threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return function(*args, **kwargs)
        finally:
            torch.set_num_threads(num_threads)

    return run


class _NativeErrors(NamedTuple):
    """The errors of the C forward and of the modules in bfloat16, relative to the logits."""

    error: float
    noise: float
    has_experts: bool

    @property
    def is_exact(self) -> bool:
        return self.error < NOISES * self.noise


class ParityCheck:
    """Checks on a miniature model that a model's forwards compute what ``generate`` does.

    Raises UnsupportedModel for a model that has no miniature, keeps more than keys, values and the
    states of its mixers, or computes something else over pages.

    ``continues``: see :class:`Mixers`. None if the model has no mixers.
    ``direct_weights``: layers that must not be packed.
    """

    @single_threaded
    def __init__(
        self, model: Any, backend: AttentionBackend, block_size: int, max_len: int
    ) -> None:
        """``max_len`` is the longest that a sequence can become."""
        self.max_len = max_len
        self._name = type(model).__name__
        self._model, self._backend, self._block_size = model, backend.make_for_cpu(), block_size
        miniature = self._miniature(torch.float32)
        draw = torch.Generator().manual_seed(1)
        vocabulary = miniature.get_input_embeddings().num_embeddings
        self._texts = [
            torch.randint(1, vocabulary, (length + _DECODED,), generator=draw).tolist()
            for length in _PROMPTS
        ]
        paged = PagedModel(miniature)
        with finding_direct_weights(miniature) as direct:
            paged.mixers = find_states(paged, self._backend, block_size, miniature.device)
        self.direct_weights = frozenset(direct)
        self._expected = self._generate(miniature, paged.mixers is not None)
        self.continues = None if paged.mixers is None else self._check_mixers(paged, paged.mixers)
        if paged.mixers is None:
            self._check(paged)

    def _check(self, paged: PagedModel) -> None:
        error = self._error(paged)
        if not error < TOLERANCE[torch.float32]:
            raise UnsupportedModel(f"{self._name} over pages differs from generate by {error:.1%}")

    def _check_mixers(self, paged: PagedModel, mixers: StatefulModules) -> bool:
        """Return whether the mixers can continue a sequence with several tokens at once. The others
        ignore the earlier tokens, or fail."""
        mixers.wrap(Adapters())
        try:
            self._check(paged)
        except UnsupportedModel:
            mixers.continues = False
            self._check(paged)
        return mixers.continues

    @single_threaded
    @torch.inference_mode()
    def check_native(self) -> None:
        """Compare the C forward in bfloat16, whose error may be about as large as torch's. Raises
        UnsupportedModel.

        Rounding alone may send a token to another expert, which hides smaller errors. So all that a
        mixture computes is compared with every token at every expert. Its choice of experts is
        tried with other random weights if it fails: a wrong one fails with all of them."""
        errors = self._native_errors()
        if errors.has_experts:
            self._expect_exact(self._native_errors(to_every_expert=True))
            for seed in range(1, _DRAWS):
                if errors.is_exact:
                    break
                errors = self._native_errors(seed)
        self._expect_exact(errors)

    def _expect_exact(self, errors: _NativeErrors) -> None:
        if not errors.is_exact:
            raise UnsupportedModel(
                f"{self._name} in C differs from generate by {errors.error:.1%}, in torch by "
                f"{errors.noise:.1%}"
            )

    def _native_errors(self, seed: int = 0, *, to_every_expert: bool = False) -> _NativeErrors:
        """Return the errors of a miniature in bfloat16, each token of which may go to all
        experts."""
        expected = None
        if seed or to_every_expert:
            exact = self._miniature(torch.float32, seed)
            if to_every_expert:
                choose_every_expert(exact)
            expected = self._generate(exact, self.continues is not None)
        miniature = self._miniature(torch.bfloat16, seed)
        if to_every_expert:
            choose_every_expert(miniature)
        pack_linears(miniature, kept=self.direct_weights)
        paged = PagedModel(miniature)
        stateful: Collection[nn.Module] = ()
        if self.continues is not None:
            mixers = find_states(paged, self._backend, self._block_size, miniature.device)
            assert mixers is not None
            mixers.continues = self.continues
            mixers.wrap(Adapters())
            paged.mixers, stateful = mixers, mixers.shapes
        noise = self._error(paged, expected)
        probed = probe(paged, self._backend, self._block_size, miniature.device)
        longest = max(map(len, self._texts))
        native = NativeDecoder.recognise(miniature, probed, stateful, longest)
        if native is None:
            raise UnsupportedModel(f"the C forward does not take the miniature of {self._name}")
        paged.native = native
        return _NativeErrors(self._error(paged, expected), noise, native.has_experts)

    def _miniature(self, dtype: torch.dtype, seed: int = 0) -> Any:
        try:
            made = make_miniature(self._model, self.max_len, self._backend.attention, dtype, seed)
        except Exception as error:
            raise UnsupportedModel(f"{self._name} cannot be made smaller: {error!r}") from error
        use_pages(made)
        wrap_compressors(made)
        return made

    @torch.inference_mode()
    def _generate(self, miniature: Any, has_mixers: bool) -> Tensor:
        """Return the logits [tokens, vocabulary] after each token of each text, as ``generate``
        computes them: a prompt at once, then token by token."""
        use_own_attention(miniature)
        general = FallbackModel(miniature, Adapters(), max(map(len, self._texts)))
        logits = []
        general.try_out()
        try:
            for prompt_len, text in zip(_PROMPTS, self._texts, strict=True):
                sequence = general.begin()
                rows = sequence.extend(text[:prompt_len], every_row=True)
                logits += [rows, sequence.extend(text[prompt_len:], every_row=True)]
                is_known = has_mixers or sequence.keeps_only_keys_and_values
                if sequence.has_module_state or not is_known:
                    raise UnsupportedModel(f"{self._name} keeps more than keys and values")
        except UnsupportedModel:
            raise
        except Exception as error:
            raise UnsupportedModel(f"{self._name} cannot be tried: {error!r}") from error
        miniature.set_attn_implementation(self._backend.attention)
        return torch.cat(logits).float()

    @torch.inference_mode()
    def _error(self, paged: PagedModel, expected: Tensor | None = None) -> float:
        """Return the relative error of a forward over pages: all texts in one batch, in chunks.
        ``expected``: the logits of another miniature than the first."""
        expected = self._expected if expected is None else expected
        shapes = probe(paged, self._backend, self._block_size, expected.device).shapes
        if paged.native is not None:
            shapes = pack_keys(shapes)
        runner = Batches(paged, self._backend, self._block_size, shapes)
        try:
            actual = runner.run(self._texts, _PROMPTS, _CHUNKS)
        except Exception as error:
            raise UnsupportedModel(f"{self._name} does not run over pages: {error!r}") from error
        if actual.shape != expected.shape:
            raise UnsupportedModel(f"{self._name} has no logits for every token")
        return distance(actual, expected)
