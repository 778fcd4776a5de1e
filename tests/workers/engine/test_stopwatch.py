from workers.engine.stopwatch import Stopwatch


def test_laps_add_up_by_name_and_rounds_leave_out_what_lies_between() -> None:
    times = iter([0.0, 1.0, 3.0, 10.0, 10.5])
    stopwatch = Stopwatch(clock=lambda: next(times))
    lap = stopwatch.start()
    lap("forward")
    lap("sample")
    lap = stopwatch.start()
    lap("forward")
    assert stopwatch.totals() == {"forward": 1.5, "sample": 2.0}
