"""A worker's Prometheus page: what each figure counts."""

import math

from prometheus_client.parser import text_string_to_metric_families

from completions.jobs.execute import Claim
from tests.workers.engine.stats_making import engine_stats
from workers.metrics import WorkerMetrics

STATS = engine_stats(
    running=3, waiting=2, kv_blocks_used=25, kv_blocks_total=100, preemptions=4,
    prefix_cache_queries=80, prefix_cache_hits=60, generated_tokens=50, forced_tokens=20, steps=7,
    drafted_tokens=16, accepted_tokens=12,
    last_step_at=90.0, step_seconds={"forward": 1.5, "mask": 0.25},
)  # fmt: skip


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def claim(attempt: int = 1, age: float = 2.0) -> Claim:
    return Claim("job", attempt, b"{}", 60.0, 1, age=age)


def read(metrics: WorkerMetrics) -> dict[tuple[str, str], float]:
    """Values by name and label values."""
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(metrics.page().decode())
        for sample in family.samples
    }


def test_the_engines_counters_are_read_as_they_stand() -> None:
    found = read(WorkerMetrics(lambda: STATS, Clock()))
    assert found["quire_num_requests_running", ""] == 3
    assert found["quire_num_requests_waiting", ""] == 2
    assert found["quire_kv_cache_usage_perc", ""] == 0.25
    assert found["quire_num_preemptions_total", ""] == 4
    assert found["quire_prefix_cache_hits_total", ""] == 60
    assert found["quire_generation_tokens_total", ""] == 50
    assert found["quire_forced_tokens_total", ""] == 20
    assert found["quire_drafted_tokens_total", ""] == 16
    assert found["quire_accepted_tokens_total", ""] == 12
    assert found["quire_engine_step_seconds_total", "forward"] == 1.5
    assert found["quire_engine_step_age_seconds", ""] == 10.0
    assert found["quire_worker_process_resident_memory_bytes", ""] > 0


def test_times_count_from_submission_and_tokens_share_an_output() -> None:
    clock = Clock()
    metrics = WorkerMetrics(engine_stats, clock)
    times = metrics.begin(claim(age=2.0), resumed=False)
    times.record_output(101.0, 0)  # nothing was generated yet
    times.record_output(101.5, 1)
    times.record_output(101.9, 4)  # one sampled, three forced
    times.record_end(102.0, "completed", 10, 5)
    found = read(metrics)
    assert found["quire_request_queue_time_seconds_sum", ""] == 2.0
    assert found["quire_time_to_first_token_seconds_sum", ""] == 3.5
    assert math.isclose(found["quire_inter_token_latency_seconds_sum", ""], 0.1)
    assert found["quire_inter_token_latency_seconds_count", ""] == 1
    assert found["quire_e2e_request_latency_seconds_sum", ""] == 4.0
    assert found["quire_request_prompt_tokens_sum", ""] == 10
    assert found["quire_request_generation_tokens_sum", ""] == 5
    assert found["quire_requests_total", "completed"] == 1


def test_a_job_that_goes_on_elsewhere_has_had_its_first_token() -> None:
    metrics = WorkerMetrics(engine_stats, Clock())
    times = metrics.begin(claim(attempt=2), resumed=True)
    times.record_output(100.5, 1)
    times.record_output(100.6, 1)
    found = read(metrics)
    assert found["quire_request_queue_time_seconds_count", ""] == 0
    assert found["quire_time_to_first_token_seconds_count", ""] == 0
    assert found["quire_inter_token_latency_seconds_count", ""] == 1
