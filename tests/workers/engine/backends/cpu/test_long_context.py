"""Thousands of tokens: a token's logits, keys and values have the same bits however its prompt was
cut, and whichever sequences with common pages attend beside it; and they are the likeliest ones."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.representatives import stand_for_all
from tests.workers.engine.backends.cpu.builds import BUILDS, build
from tests.workers.engine.backends.cpu.shapes import RECOGNISED, SHAPES
from tests.workers.engine.backends.cpu.test_decoder import save
from workers.engine.backends.cpu import decoder
from workers.engine.backends.cpu.attention import AttentionMetadata, DecodeGroup, PrefillChunk
from workers.engine.backends.cpu.layers import linear
from workers.engine.backends.cpu.layers.library import load_library
from workers.engine.checkpoints.loader import load_model
from workers.engine.config import EngineConfig

pytestmark = pytest.mark.skipif(load_library() is None, reason="needs the C kernels")

BLOCK = 16
LENGTH = 3008
SHARED = (0, 1024, 1008, 2500)
"""How many tokens each text has in common with the one before it."""
TEXTS = len(SHARED)
LAST = 40
"""So many tokens of every text are computed as single rows and in pieces of every kind."""
LONG: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 300},
    "gemma2": {**SHAPES["gemma2"], "sliding_window": 1000},
    "gpt_oss": {**SHAPES["gpt_oss"], "sliding_window": 130},
    "deepseek_v3": SHAPES["deepseek_v3"],
    "gpt_bigcode": SHAPES["gpt_bigcode"],
    "llama with heads of 72": SHAPES["llama with heads of 72"],
}

Piece = tuple[int, int, int]
"""Of a text, from a token on, so many tokens."""


class Sequences:
    """A model and texts with common beginnings, each text in pages of its own and, in further lines
    of the block tables, in pages that it shares with the text before."""

    def __init__(self, path: Path) -> None:
        loaded: Any = load_model(path, EngineConfig(device="cpu", dtype="bfloat16"))
        self.model = loaded.paged
        blocks = LENGTH // BLOCK
        self.cache = loaded.backend.make_cache(
            loaded.layer_shapes, 1 + 2 * TEXTS * blocks, BLOCK, loaded.dtype
        )
        order = torch.randperm(2 * TEXTS * blocks, generator=torch.Generator().manual_seed(3))
        self.own, self.shared = (1 + order).view(2, TEXTS, blocks)
        self.texts = torch.randint(416, (TEXTS, LENGTH), generator=torch.Generator().manual_seed(5))
        for text, count in enumerate(SHARED[1:], 1):
            self.texts[text, :count] = self.texts[text - 1, :count]
            self.shared[text, : count // BLOCK] = self.shared[text - 1, : count // BLOCK]
        self.logits = torch.stack([self._compute_alone(text) for text in range(TEXTS)])

    def _compute_alone(self, text: int) -> Tensor:
        """Logits of a text by itself; its last tokens one by one."""
        step = 97
        starts = range(0, LENGTH - LAST, step)
        pieces = [(text, start, min(step, LENGTH - LAST - start)) for start in starts]
        pieces += [(text, start, 1) for start in range(LENGTH - LAST, LENGTH)]
        return torch.cat([self.run([piece], self.own) for piece in pieces])

    @torch.inference_mode()
    def run(self, pieces: list[Piece], tables: Tensor) -> Tensor:
        """Logits [rows, vocabulary] of a step."""
        metadata, ids, positions = self.metadata(pieces, tables)
        logits: Tensor = self.model.native(ids, positions, metadata, torch.arange(len(ids)))
        return logits.clone()

    def metadata(
        self, pieces: list[Piece], tables: Tensor
    ) -> tuple[AttentionMetadata, Tensor, Tensor]:
        places = [torch.arange(start, start + size) for _, start, size in pieces]
        positions = torch.cat(places)
        sizes = torch.tensor([size for *_, size in pieces])
        owners = torch.tensor([text for text, *_ in pieces]).repeat_interleave(sizes)
        slots = tables[owners, positions // BLOCK] * BLOCK + positions % BLOCK
        metadata = AttentionMetadata(self.cache, slots, [], [], tables, owners)
        return metadata, self.texts[owners, positions], positions

    def pages(self, tables: Tensor, text: int, end: int) -> Iterator[Tensor]:
        """Keys and values of the first tokens of a text, in all layers."""
        for layer in self.cache.layers.values():
            for pages in layer.gather(layer.head_major(tables[text]), 1):
                yield pages[:, :end]

    def check(self, pieces: list[Piece]) -> None:
        """A step over shared pages gives each row's bits."""
        logits = self.run(pieces, self.shared).split([size for *_, size in pieces])
        for found, (text, start, size) in zip(logits, pieces, strict=True):
            assert torch.equal(found, self.logits[text, start : start + size]), (text, start, size)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("long")


def save_long(folder: Path, model: str) -> Path:
    options = {**{**RECOGNISED, **SHAPES}.get(model, {}), **LONG[model]}
    path = folder / model.replace(" ", "-")
    path.mkdir(exist_ok=True)
    return save(path, model, {**options, "max_position_embeddings": 4096})


def check_cuts(sequences: Sequences, seed: int) -> None:
    """Every text in random cuts over shared pages, several texts in a step; then its last tokens as
    single rows of one step, as drafts, and beside a long piece."""
    draw = random.Random(seed)  # noqa: S311 - cuts, not secrets
    at = [0] * TEXTS
    for text in range(TEXTS):  # what a text shares has been computed for the text before
        at[text] = SHARED[text] // BLOCK * BLOCK
    while min(at) < LENGTH - LAST:
        pieces = []
        for text in draw.sample(range(TEXTS), TEXTS):
            is_ready = all(at[t - 1] >= SHARED[t] for t in range(1, text + 1))
            size = min(draw.choice((1, 3, 17, 64, 333, 700)), LENGTH - LAST - at[text])
            if is_ready and size > 0:
                pieces.append((text, at[text], size))
                at[text] += size
        torch.set_num_threads(draw.choice((1, 2)))
        sequences.check(pieces)
    torch.set_num_threads(2)
    begin = LENGTH - LAST
    for i in range(begin, LENGTH - 8, 8):
        sequences.check([(text, i, 1) for text in range(TEXTS)])
        order = draw.sample(range(TEXTS), TEXTS)
        sequences.check([(text, i, 1 + 7 * (text % 2)) for text in order])
        sequences.check([(text, i, 8) for text in range(TEXTS)])
    for text in range(TEXTS):
        end = LENGTH - 8
        pages = zip(
            sequences.pages(sequences.own, text, end),
            sequences.pages(sequences.shared, text, end),
            strict=True,
        )
        assert all(torch.equal(own, shared) for own, shared in pages)
    torch.set_num_threads(1)


@pytest.mark.wide
@pytest.mark.parametrize("model", stand_for_all(["gpt_oss"], LONG))  # has windows and full layers
def test_every_cut_of_three_thousand_tokens_gives_the_same_bits(folder: Path, model: str) -> None:
    sequences = Sequences(save_long(folder, model))
    check_cuts(sequences, 1)
    check_cuts(sequences, 2)


@pytest.mark.parametrize("name", [pytest.param(x, marks=pytest.mark.long) for x in BUILDS])
@pytest.mark.parametrize("model", ["gemma2", "deepseek_v3"])
def test_other_processors_give_the_same_bits_too(folder: Path, model: str, name: str) -> None:
    library = build(name)
    with pytest.MonkeyPatch.context() as patch:
        for module in (decoder, linear):
            patch.setattr(module, "load_library", lambda: library)
        check_cuts(Sequences(save_long(folder, model)), 3)


@pytest.mark.represented_by("llama")
@pytest.mark.parametrize("model", ["llama", "mistral"])
@torch.inference_mode()
def test_long_texts_get_the_logits_of_torch(folder: Path, model: str) -> None:
    """The model's modules attend with torch over the same pages."""
    sequences = Sequences(save_long(folder, model))
    paged = sequences.model
    pieces: list[Piece] = [(3, LENGTH - 8, 1)]
    metadata, ids, positions = sequences.metadata(pieces, sequences.own)
    blocks = sequences.own[3:4]
    metadata.groups.append(DecodeGroup(0, 1, blocks, positions))
    native, paged.native = paged.native, None
    rows = torch.arange(1)
    decoded = paged(ids, positions, metadata, rows)
    metadata, ids, positions = sequences.metadata([(3, LENGTH - 8, 8)], sequences.own)
    metadata.chunks.append(PrefillChunk(0, 8, LENGTH - 8, blocks))
    chunk = paged(ids, positions, metadata, torch.arange(8))
    paged.native = native
    expected = sequences.logits[3, LENGTH - 8 :]
    assert (decoded - expected[:1]).norm() < 0.06 * expected[:1].norm()
    assert (chunk - expected).norm() < 0.06 * expected.norm()
