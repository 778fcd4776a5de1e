import json

from tests.workers.engine.stats_making import engine_stats


def test_counters_are_plain_numbers_by_name() -> None:
    stats = engine_stats(
        running=2, generated_tokens=9, last_step_at=1.5, step_seconds={"mask": 1.0}
    )
    counters = json.loads(json.dumps(stats.counters()))
    assert counters["running"] == 2
    assert counters["generated_tokens"] == 9
    assert counters["forced_tokens"] == 0
    assert not {"last_step_at", "step_seconds"} & set(counters)
