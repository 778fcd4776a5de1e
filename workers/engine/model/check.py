"""Inspects a model in a first forward, and checks that its forward over pages is right.

A twin of the model, small, random and with short windows, runs over pages in batches of sequences
of unequal length, longer than every length that the configuration names. Its logits are compared,
token by token, with the logits of its own ``generate``. The model itself is compared with its own
attention over a few tokens.
"""

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from itertools import accumulate, pairwise
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from workers.engine.config import EngineConfig
from workers.engine.cpu.decoder import NativeDecoder
from workers.engine.cpu.direct_weights import finding_direct_weights
from workers.engine.cpu.packed_linear import pack_linears
from workers.engine.exceptions import UnsupportedModel
from workers.engine.general.model import GeneralModel, use_own_attention
from workers.engine.model.attention_backend import AttentionBackend, CpuBackend, Part
from workers.engine.model.kv_cache import CacheProbe, LayerShape
from workers.engine.model.lora import Adapters
from workers.engine.model.paged import PagedModel
from workers.engine.model.twin import make_twin
from workers.engine.model.visibility import tagging_masks
from workers.engine.recurrent.batch import StateBatch, StatePiece, lay_out_states
from workers.engine.recurrent.mixers import Mixers, find_mixers
from workers.engine.recurrent.states import StateTable

P = ParamSpec("P")
R = TypeVar("R")

PROBED_TOKENS = 2
_CHECKED_PIECES = (11, 12, 1)
"""The chunk sizes of the model's own check: a first chunk, a second one, and a single token."""

_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
"""Relative error of logits that rounding alone explains; a wrong mask is off by far more."""

_TOLERANCE_ROUNDED = 0.2
"""The same for 8-bit activations: a difference in the last bit may round to another byte, as in
7 % of random models."""

_NOISES = 3.0
"""Two correct forwards of a model may differ by this many times as much as two others do."""

_MOST_NOISE = 0.5

_PROMPTS = (69, 21, 9)
_DECODED = 5
_CHUNKS = (40, 13, 9)
"""The lengths of the twin's prompts in a first batch, and the tokens after them: past windows and
chunks, and past the length of its rotary embedding in mid-decode."""


@torch.inference_mode()
def probe(
    paged: PagedModel, backend: AttentionBackend, block_size: int, device: torch.device
) -> CacheProbe:
    """Run a few tokens, and record what each layer stores and which tokens attend to it. Raises
    UnsupportedModel."""
    found = CacheProbe()
    name = type(paged.model).__name__
    try:
        with tagging_masks(backend.attention):
            _run_a_few(paged, found, backend, block_size, device)
    except UnsupportedModel:
        raise
    except Exception as error:
        raise UnsupportedModel(f"{name} does not run over pages: {error!r}") from error
    if not found.shapes and paged.mixers is None:
        raise UnsupportedModel(f"{name} stores no keys and values")
    return found


@torch.inference_mode()
def find_states(
    paged: PagedModel, backend: AttentionBackend, block_size: int, device: torch.device
) -> Mixers | None:
    """Run a few tokens, and record which modules keep states, if any do. Raises
    UnsupportedModel."""

    def run(options: dict[str, Any]) -> None:
        _run_a_few(paged, CacheProbe(), backend, block_size, device, **options)

    with tagging_masks(backend.attention):
        return find_mixers(paged.model, run)


def _run_a_few(
    paged: PagedModel,
    cache: CacheProbe,
    backend: AttentionBackend,
    block_size: int,
    device: torch.device,
    **options: Any,
) -> None:
    tokens = torch.arange(PROBED_TOKENS, device=device)
    blocks = list(range(-(-PROBED_TOKENS // block_size)))
    metadata = backend.batch(cache, [Part(0, PROBED_TOKENS, blocks)], block_size)
    paged.through_modules(tokens, tokens, metadata, tokens, **options)


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


class Proof:
    """Proves with a twin that a model's forwards compute what ``generate`` does.

    Raises UnsupportedModel for a model that has none, keeps more than keys, values and the states
    of its mixers, or computes something else over pages.

    ``continues``: see :class:`Mixers`. None if the model has no mixers.
    ``direct_weights``: layers that must not be packed.
    """

    @single_threaded
    def __init__(
        self, model: Any, backend: AttentionBackend, block_size: int, max_len: int
    ) -> None:
        """``max_len`` is the longest that a sequence can become."""
        self._max_len = max_len
        self._name = type(model).__name__
        self._model, self._backend, self._block_size = model, backend.on_cpu(), block_size
        twin = self._twin(torch.float32)
        draw = torch.Generator().manual_seed(1)
        vocabulary = twin.get_input_embeddings().num_embeddings
        self._texts = [
            torch.randint(1, vocabulary, (length + _DECODED,), generator=draw).tolist()
            for length in _PROMPTS
        ]
        paged = PagedModel(twin)
        with finding_direct_weights(twin) as direct:
            paged.mixers = find_states(paged, self._backend, block_size, twin.device)
        self.direct_weights = frozenset(direct)
        if paged.mixers is not None and not isinstance(backend, CpuBackend):
            raise UnsupportedModel(f"{self._name} keeps states, which are batched on CPUs only")
        self._expected = self._generated(twin, paged.mixers is not None)
        self.continues = None if paged.mixers is None else self._check_mixers(paged, paged.mixers)
        if paged.mixers is None:
            self._check(paged)

    def _check(self, paged: PagedModel) -> None:
        error = self._error(paged)
        if not error < _TOLERANCE[torch.float32]:
            raise UnsupportedModel(f"{self._name} over pages is off generate by {error:.1%}")

    def _check_mixers(self, paged: PagedModel, mixers: Mixers) -> bool:
        """Return whether the mixers can continue a sequence with several tokens at once. The others
        ignore the earlier tokens, or fail."""
        mixers.wrap()
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
        UnsupportedModel."""
        twin = self._twin(torch.bfloat16)
        pack_linears(twin, kept=self.direct_weights)
        paged = PagedModel(twin)
        noise = self._error(paged)
        probed = probe(paged, self._backend, self._block_size, twin.device)
        paged.native = NativeDecoder.recognise(twin, probed, max(map(len, self._texts)))
        if paged.native is None:
            raise UnsupportedModel(f"the C forward does not take the twin of {self._name}")
        error = self._error(paged)
        if not error < _NOISES * noise:
            raise UnsupportedModel(
                f"{self._name} in C is off generate by {error:.1%}, and by {noise:.1%} in torch"
            )

    def _twin(self, dtype: torch.dtype) -> Any:
        try:
            return make_twin(self._model, self._max_len, self._backend.attention, dtype)
        except Exception as error:
            raise UnsupportedModel(f"{self._name} cannot be tried in small: {error!r}") from error

    @torch.inference_mode()
    def _generated(self, twin: Any, has_mixers: bool) -> Tensor:
        """The logits [tokens, vocabulary] after each token of each text, as ``generate`` computes
        them: a prompt at once, then token by token."""
        use_own_attention(twin)
        general = GeneralModel(twin, Adapters(), max(map(len, self._texts)))
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
        twin.set_attn_implementation(self._backend.attention)
        return torch.cat(logits).float()

    @torch.inference_mode()
    def _error(self, paged: PagedModel) -> float:
        """Return the largest error of a forward over pages: all texts in one batch, in chunks."""
        shapes = probe(paged, self._backend, self._block_size, self._expected.device).shapes
        runner = _Batches(paged, self._backend, self._block_size, shapes)
        try:
            actual = runner.run(self._texts, _PROMPTS, _CHUNKS)
        except Exception as error:
            raise UnsupportedModel(f"{self._name} does not run over pages: {error!r}") from error
        if actual.shape != self._expected.shape:
            raise UnsupportedModel(f"{self._name} has no logits for every token")
        return _distance(actual, self._expected)


class _Batches:
    """Runs texts over a separate cache: each prompt in chunks, then token by token."""

    def __init__(
        self,
        paged: PagedModel,
        backend: AttentionBackend,
        block_size: int,
        shapes: dict[nn.Module, LayerShape],
    ) -> None:
        self._paged, self._backend, self._block_size = paged, backend, block_size
        self._shapes = shapes

    def run(
        self, texts: Sequence[list[int]], prompts: Sequence[int], chunks: Sequence[int]
    ) -> Tensor:
        """Logits [tokens, vocabulary] after each token of each text."""
        model: Any = self._paged.model
        size, device = self._block_size, model.device
        widths = [-(-len(text) // size) for text in texts]
        ends = list(accumulate(widths, initial=1))
        tables = [list(range(a, b)) for a, b in pairwise(ends)]
        cache = self._backend.make_cache(self._shapes, ends[-1], size, model.dtype)
        mixers = self._paged.mixers
        table = StateTable({} if mixers is None else mixers.shapes, len(texts))
        logits: list[list[Tensor]] = [[] for _ in texts]
        done = [0] * len(texts)
        while any(n < len(text) for n, text in zip(done, texts, strict=True)):
            sizes = [
                min(c, p - n) if n < p else int(n < len(t))
                for n, p, c, t in zip(done, prompts, chunks, texts, strict=True)
            ]
            order = sorted((i for i, n in enumerate(sizes) if n), key=lambda i: sizes[i] > 1)
            parts = [Part(done[i], sizes[i], tables[i]) for i in order]
            ids = [t for i in order for t in texts[i][done[i] : done[i] + sizes[i]]]
            places = [p for i in order for p in range(done[i], done[i] + sizes[i])]
            rows = self._paged(
                torch.tensor(ids, device=device),
                torch.tensor(places, device=device),
                self._backend.batch(cache, parts, size),
                torch.arange(len(ids), device=device),
                self._states(table, [(i, sizes[i], done[i] == 0) for i in order]),
            ).to(torch.float32, copy=True)
            for i, part in zip(order, torch.split(rows, [sizes[i] for i in order]), strict=True):
                logits[i].append(part)
                done[i] += sizes[i]
        return torch.cat([part for each in logits for part in each])

    def _states(
        self, table: StateTable, parts: Sequence[tuple[int, int, bool]]
    ) -> StateBatch | None:
        """The states of a flat batch. A part has its text's row, its size, and whether it begins
        the text."""
        if (mixers := self._paged.mixers) is None:
            return None
        starts = accumulate((size for _, size, _ in parts), initial=0)
        pieces = [
            StatePiece(row, start, size, is_fresh)
            for (row, size, is_fresh), start in zip(parts, starts, strict=False)
        ]
        return lay_out_states(table, pieces, mixers.continues)


class OwnAttention:
    """A model's logits for a few tokens with its own attention: a reference for its forwards, which
    checks that its weights are read and packed correctly."""

    @torch.inference_mode()
    def __init__(self, model: Any, backend: AttentionBackend, config: EngineConfig) -> None:
        self._model, self._backend = model, backend
        self._block_size = config.block_size
        self._is_split = config.tensor_parallel_size > 1
        self._tolerance = _TOLERANCE_ROUNDED if config.is_rounded else _TOLERANCE[model.dtype]
        self.vocab_size: int = model.get_output_embeddings().out_features
        tokens = torch.arange(sum(_CHECKED_PIECES), device=model.device)
        self._tokens = (tokens * 7919 + 11) % self.vocab_size
        self._logits = self._own_logits("eager")

    def compare(self, paged: PagedModel, shapes: dict[nn.Module, LayerShape]) -> None:
        """Raises UnsupportedModel for a forward that is further off than rounding explains."""
        name, length = type(self._model).__name__, len(self._tokens)
        batches = _Batches(paged, self._backend, self._block_size, shapes)
        first, second, _ = _CHECKED_PIECES
        try:
            with torch.inference_mode():
                actual = batches.run([self._tokens.tolist()], [length - 1], [max(first, second)])
        except torch.OutOfMemoryError:  # other ways need as much
            raise
        except Exception as fault:
            if self._is_split:  # the other ranks have not finished this forward
                raise
            raise UnsupportedModel(f"{name} does not run over pages: {fault!r}") from fault
        error = _distance(actual, self._logits)
        allowed = self._tolerance
        if error >= allowed and self._model.dtype != torch.float32:
            noise = _distance(self._own_logits("sdpa"), self._logits)
            allowed = min(_NOISES * noise, _MOST_NOISE)
        if not error < allowed:
            raise UnsupportedModel(
                f"{name} over pages differs from its own attention by {error:.1%}"
            )

    @torch.inference_mode()
    def _own_logits(self, attention: str) -> Tensor:
        model, ids = self._model, self._tokens[None]
        # Without explicit positions, a model may count differently, as RoBERTa does.
        takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        positions = {"position_ids": torch.arange(len(ids[0]), device=ids.device)[None]}
        positions = positions if takes_positions else {}
        try:
            model.set_attn_implementation(attention)
            logits: Tensor = model(input_ids=ids, use_cache=False, **positions).logits[0]
        except Exception as error:
            name = type(model).__name__
            raise UnsupportedModel(f"{name} cannot be checked: {error!r}") from error
        finally:
            model.set_attn_implementation(self._backend.attention)
        return logits.float()


def _distance(actual: Tensor, expected: Tensor) -> float:
    """The relative error of logits."""
    return float((actual - expected).norm() / expected.norm())
