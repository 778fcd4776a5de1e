"""A small run of the benchmark on a tiny random model."""

import pytest

from benchmarks.studies.batch_plan import compare, shuffle_lines
from tests.workers.engine.tiny_models import VOCAB_SIZE, save_model
from workers.engine.build import build_engine
from workers.engine.config import EngineConfig


@pytest.mark.long
def test_the_prediction_is_what_the_engine_does(tmp_path):
    folder = save_model(tmp_path / "tiny")
    config = EngineConfig(max_num_seqs=8, kv_cache_bytes=1024 * 1024)
    engine = build_engine(folder, config)
    tokens = engine.stats().kv_blocks_total * config.block_size
    prompts = shuffle_lines(VOCAB_SIZE, lines=300, prefixes=30, prefix_tokens=192, own_tokens=8)
    assert tokens < 30 * 192 // 2
    before, after = compare(engine, prompts, new_tokens=2)
    total = sum(map(len, prompts))
    assert after.predicted == pytest.approx(after.measured, rel=0.02)
    assert before.predicted == pytest.approx(before.measured, rel=0.05)
    assert after.measured > 0.8 * total
    assert before.measured < 0.6 * after.measured
