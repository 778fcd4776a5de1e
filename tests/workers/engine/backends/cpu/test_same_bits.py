"""A token's logits, keys and values have the same bits whatever else the step computes, however
its prompt was cut into chunks, and wherever the keys and values before it came from."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.representatives import stand_for_all
from tests.workers.engine.backends.cpu.builds import BUILDS, build
from tests.workers.engine.backends.cpu.shapes import RECOGNISED, SHAPES
from tests.workers.engine.backends.cpu.test_decoder import BY_DTYPE, save, skip_without
from workers.engine.backends.cpu import decoder
from workers.engine.backends.cpu.attention import AttentionMetadata
from workers.engine.backends.cpu.layers import linear
from workers.engine.backends.cpu.layers.library import load_library
from workers.engine.backends.recurrent.batch import Save, StateBatch, StatePiece
from workers.engine.backends.recurrent.states import StateTable
from workers.engine.checkpoints.loader import load_model
from workers.engine.config import EngineConfig

pytestmark = pytest.mark.skipif(load_library() is None, reason="needs the C kernels")

BLOCK = 16
BLOCKS = 5
LENGTH = BLOCKS * BLOCK
TEXTS = 4
VOCABULARY = 416
OWN = TEXTS
"""The line of the block tables that belongs to the sequence under test."""
MOST_PIECES = 128
OWN_STATE = MOST_PIECES
"""The row of states that belongs to the sequence under test; the others' are before it."""


@dataclass(frozen=True)
class Piece:
    """Tokens ``[start, start + size)`` of a text, for the pages in a line of the block tables."""

    text: int
    line: int
    start: int
    size: int


@dataclass(frozen=True)
class Step:
    """What the sequence under test computes of its text, and who computes in the same step."""

    size: int
    before: list[Piece]
    after: list[Piece]
    wanted: list[int] | None
    """Rows whose logits are asked for, modulo the number of rows; None: all."""


@dataclass(frozen=True)
class Case:
    text: int
    cached_blocks: int
    steps: list[Step]
    threads: int


class Reference:
    """A decoder, and what each of its texts gives if computed alone, token by token."""

    def __init__(self, path: Path, dtype: str) -> None:
        loaded = load_model(path, EngineConfig(device="cpu", dtype=dtype))
        assert loaded.paged.native is not None
        self._native = loaded.paged.native
        lines = TEXTS + 1
        self._cache = loaded.backend.make_cache(
            loaded.layer_shapes, 1 + lines * BLOCKS, BLOCK, loaded.dtype
        )
        self._tables = torch.arange(1, 1 + lines * BLOCKS).view(lines, BLOCKS)
        self._mixers = loaded.paged.mixers
        num_states = OWN_STATE + 1 + TEXTS * LENGTH
        self._states = StateTable({} if self._mixers is None else self._mixers.shapes, num_states)
        draw = torch.Generator().manual_seed(7)
        self._texts = torch.randint(VOCABULARY, (TEXTS, LENGTH), generator=draw)
        self.logits = torch.stack(
            [
                torch.cat([self._run_alone(Piece(t, t, i, 1)) for i in range(LENGTH)])
                for t in range(TEXTS)
            ]
        )

    def check(self, case: Case) -> None:
        """Run the case; its logits, keys and values must be those of the text computed alone."""
        own = self._tables[OWN]
        for pages in self._pages():
            pages[:, own] = 77.0  # what another owner has left
        tables = self._tables.clone()
        tables[OWN, : case.cached_blocks] = self._tables[case.text, : case.cached_blocks]
        torch.set_num_threads(case.threads)
        at = case.cached_blocks * BLOCK
        if at:
            self._states.copy_row(_saved_row(case.text, at), OWN_STATE)
        for step in case.steps:
            own_piece = Piece(case.text, OWN, at, min(step.size, LENGTH - at))
            pieces = [*step.before, own_piece, *step.after]
            expected = torch.cat([self.logits[p.text, p.start : p.start + p.size] for p in pieces])
            rows = torch.arange(len(expected))
            if step.wanted is not None:
                rows = torch.tensor(step.wanted, dtype=torch.int64) % len(rows)
            logits = self._run(pieces, tables, rows)
            assert (logits == expected[rows]).all(1).tolist() == [True] * len(rows), pieces
            at += own_piece.size
            if at == LENGTH:
                break
        for layer in self._cache.layers.values():
            stored, alone = (
                layer.gather(layer.head_major(blocks), 1)
                for blocks in (tables[OWN], self._tables[case.text])
            )
            for own, expected in zip(stored, alone, strict=True):
                assert torch.equal(own[:, :at], expected[:, :at])
        for module in () if self._mixers is None else self._mixers.shapes:
            for states in self._states.get_states(module).values():
                assert torch.equal(states[OWN_STATE], states[_saved_row(case.text, at)])

    def _pages(self) -> Iterator[Tensor]:
        """Keys and values of all layers, each [heads, blocks, BLOCK, dim]."""
        for layer in self._cache.layers.values():
            for pages in (layer.key, layer.value):
                yield pages.view(layer.shape.num_kv_heads, layer.num_blocks, BLOCK, -1)

    def _run_alone(self, piece: Piece) -> Tensor:
        """Logits of a token, after which its states are saved."""
        saves = [Save(1, _saved_row(piece.text, piece.start + 1))]
        return self._run([piece], self._tables, torch.tensor([0]), saves)

    def _lay_out_states(self, pieces: list[Piece], saves: list[Save]) -> StateBatch | None:
        """A row of states for each piece; ``saves`` are of the last one."""
        if self._mixers is None:
            return None
        laid_out, start = [], 0
        for row, piece in enumerate(pieces):
            if piece.line == OWN:
                row = OWN_STATE
            elif piece.start:
                self._states.copy_row(_saved_row(piece.text, piece.start), row)
            is_last = piece is pieces[-1]
            laid_out.append(
                StatePiece(row, start, piece.size, piece.start, saves if is_last else ())
            )
            start += piece.size
        return StateBatch(self._states, laid_out, continues=True)

    @torch.inference_mode()
    def _run(
        self, pieces: list[Piece], tables: Tensor, rows: Tensor, saves: list[Save] | None = None
    ) -> Tensor:
        """Logits [len(rows), VOCABULARY] of a step."""
        places = [torch.arange(piece.start, piece.start + piece.size) for piece in pieces]
        ids = [self._texts[piece.text, at] for piece, at in zip(pieces, places, strict=True)]
        owners = torch.tensor([piece.line for piece in pieces])
        owners = owners.repeat_interleave(torch.tensor([piece.size for piece in pieces]))
        positions = torch.cat(places)
        slots = tables[owners, positions // BLOCK] * BLOCK + positions % BLOCK
        metadata = AttentionMetadata(self._cache, slots, [], [], tables, owners)
        states = self._lay_out_states(pieces, saves or [])
        return self._native(torch.cat(ids), positions, metadata, rows, states).clone()


def _saved_row(text: int, num_tokens: int) -> int:
    """The row of the states after the first tokens of a text."""
    return OWN_STATE + text * LENGTH + num_tokens


@st.composite
def pieces(draw: st.DrawFn) -> Piece:
    text, start = draw(st.integers(0, TEXTS - 1)), draw(st.integers(0, LENGTH - 1))
    size = draw(st.one_of(st.just(1), st.integers(1, LENGTH)))
    return Piece(text, text, start, min(size, LENGTH - start))


def neighbours() -> st.SearchStrategy[list[Piece]]:
    """Up to 4 chunks, or up to 63 single tokens."""
    row = st.builds(
        lambda text, start: Piece(text, text, start, 1),
        st.integers(0, TEXTS - 1),
        st.integers(0, LENGTH - 1),
    )
    return st.one_of(st.lists(pieces(), max_size=4), st.lists(row, max_size=63))


cases = st.builds(
    Case,
    text=st.integers(0, TEXTS - 1),
    cached_blocks=st.integers(0, BLOCKS - 1),
    steps=st.lists(
        st.builds(
            Step,
            size=st.one_of(st.integers(1, 4), st.integers(1, LENGTH)),
            before=neighbours(),
            after=neighbours(),
            wanted=st.one_of(st.none(), st.lists(st.integers(0, 2**16), max_size=8)),
        ),
        min_size=1,
        max_size=5,
    ),
    threads=st.sampled_from([1, 1, 1, 1, 1, 1, 1, 2]),  # two threads are slow on a busy machine
)


@pytest.fixture(scope="module")
def references() -> Iterator[dict[Any, Reference]]:
    yield {}
    torch.set_num_threads(1)


def reference_of(known: dict[Any, Reference], model: str, dtype: str, name: str) -> Reference:
    """Return a reference by the build ``name`` of the library, or by this processor's "own"."""
    skip_without(dtype)
    if (model, dtype, name) not in known:
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
            if name != "own":
                library = build(name)
                for module in (decoder, linear):
                    patch.setattr(module, "load_library", lambda: library)
            known[model, dtype, name] = Reference(
                save(Path(folder), model, {**RECOGNISED, **SHAPES}[model]), dtype
            )
    return known[model, dtype, name]


def check_many(reference: Reference, count: int) -> None:
    @settings(
        max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(cases)
    def check(case: Case) -> None:
        reference.check(case)

    check()


@pytest.mark.represented_by("qwen3-bfloat16-4", "deepseek_v3-bfloat16-4")
@pytest.mark.parametrize("examples", [4, pytest.param(10, marks=pytest.mark.long)])
@pytest.mark.parametrize(("model", "dtype"), BY_DTYPE)
def test_a_row_has_the_same_bits(
    references: dict[Any, Reference], model: str, dtype: str, examples: int
) -> None:
    check_many(reference_of(references, model, dtype, "own"), examples)


@pytest.mark.represented_by("avx2-int8-5")
@pytest.mark.parametrize("examples", [5, pytest.param(50, marks=pytest.mark.long)])
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int4"])
@pytest.mark.parametrize("name", BUILDS)
def test_a_row_has_the_same_bits_on_other_processors(
    references: dict[Any, Reference], name: str, dtype: str, examples: int
) -> None:
    check_many(reference_of(references, "mistral", dtype, name), examples)


@pytest.mark.represented_by("avx2-72")
@pytest.mark.parametrize("size", stand_for_all([72], [72, 80, 112, 120]))
@pytest.mark.parametrize("name", BUILDS)
def test_heads_that_end_within_a_register_have_the_same_bits(
    references: dict[Any, Reference], name: str, size: int
) -> None:
    [model] = [shape for shape in SHAPES if shape.endswith(f"heads of {size}")]
    check_many(reference_of(references, model, "bfloat16", name), 10)
    own = reference_of(references, model, "bfloat16", "own").logits
    others = reference_of(references, model, "bfloat16", name).logits
    assert (others - own).norm() < 0.02 * own.norm()


@pytest.mark.represented_by("avx2-int8", "vectors-bfloat16")
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int4"])
@pytest.mark.parametrize("name", BUILDS)
def test_processors_differ_by_rounding_alone(
    references: dict[Any, Reference], name: str, dtype: str
) -> None:
    own = reference_of(references, "mistral", dtype, "own").logits
    others = reference_of(references, "mistral", dtype, name).logits
    assert (others - own).norm() < 0.02 * own.norm()


def test_values_near_zero_have_the_same_bits(tmp_path: Path) -> None:
    """Their sums with weights are denormal, which tiles take for zero."""
    path = save(tmp_path, "mistral", RECOGNISED["mistral"])
    weights = load_file(path / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith("v_proj.weight"):
            weight.mul_(2.0**-120)
        elif name.endswith("o_proj.weight"):
            weight.mul_(2.0**120)
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    check_many(Reference(path, "bfloat16"), 10)


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int4"])
@pytest.mark.parametrize("name", ["plain", "avx2"])
@pytest.mark.parametrize("model", sorted(SHAPES))
def test_rows_of_other_shapes_have_the_same_bits(
    references: dict[Any, Reference], model: str, name: str, dtype: str
) -> None:
    check_many(reference_of(references, model, dtype, name), 10)


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "int4"])
@pytest.mark.parametrize("model", sorted(RECOGNISED))
def test_ten_thousand_rows_have_the_same_bits(
    references: dict[Any, Reference], model: str, dtype: str
) -> None:
    """850 cases for each model and type."""
    check_many(reference_of(references, model, dtype, "own"), 850)
