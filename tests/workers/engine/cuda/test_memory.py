from workers.engine.cuda.memory import what_remains


def test_weights_others_and_the_peak_of_a_step_come_off() -> None:
    gib = 2**30
    assert (
        what_remains(free=70 * gib, total=80 * gib, step_peak=2 * gib, utilization=0.9) == 60 * gib
    )
    assert what_remains(free=1 * gib, total=80 * gib, step_peak=0, utilization=0.9) < 0
