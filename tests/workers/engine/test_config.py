from typing import Any

import pytest

from workers.engine.config import EngineConfig


@pytest.mark.parametrize(
    "nonsense",
    [
        {"dtype": "int3"},
        {"device": "tpu"},
        {"device": "cuda:x"},
        {"gpu_memory_utilization": 0.0},
        {"gpu_memory_utilization": 1.1},
        {"max_num_seqs": 0},
        {"step_ms": 0.0},
        {"block_size": 0},
        {"grammar_threads": 0},
        {"max_model_len": 0},
        {"kv_cache_bytes": 0},
        {"num_threads": 0},
        {"tensor_parallel_size": 0},
        {"repetition_penalty_scope": "prompt"},
        {"max_num_batched_tokens": 64, "max_num_seqs": 64},
    ],
)
def test_bad_settings_are_refused_by_name(nonsense: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(nonsense))):
        EngineConfig(**nonsense)
