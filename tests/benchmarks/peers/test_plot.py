from benchmarks.peers import plot

TABLES = [
    {
        "name": "64+64",
        "rows": [
            {"batch": 1, "median": {"quire": 9.0, "other": 5.0}},
            {"batch": 8, "median": {"quire": 50.0, "other": None}},
        ],
    },
    {"name": "regex", "rows": [{"batch": 8, "median": {"quire": 49.0, "other": 3.0}}]},
    {"name": "512+32", "rows": [{"batch": 8, "median": {"quire": 7.0, "other": 6.0}}]},
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
