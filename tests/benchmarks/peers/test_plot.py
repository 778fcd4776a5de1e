from benchmarks.peers import plot

FREE = {"1": {"quire": 9.0, "other": 5.0}, "8": {"quire": 50.0, "other": None}}
TABLES = [
    {"title": "free", "unit": "tokens/s", "rows": FREE},
    {"title": "regex", "unit": "tokens/s", "rows": {"8": {"quire": 49.0, "other": 3.0}}},
    {"title": "documents", "unit": "documents/s", "rows": {"8": {"quire": 2.0}}},
]


def test_lines_are_rates_by_batch_of_those_who_have_one() -> None:
    assert plot.rates(TABLES) == {
        "quire": ([1, 8], [9.0, 50.0]),
        "other": ([1], [5.0]),
        "quire, constrained": ([8], [49.0]),
    }


def test_bars_are_milliseconds_by_phase() -> None:
    rows = [{"batch": b, "step_ms": {"forward": 2.0 * b, "sample": 1.0}} for b in (1, 8)]
    assert plot.phases(rows) == {"forward": ([1, 8], [2.0, 16.0]), "sample": ([1, 8], [1.0, 1.0])}
