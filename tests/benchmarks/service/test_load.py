"""The load benchmark's arithmetic."""

from benchmarks.service.load import mix, report
from benchmarks.service.streams import Stream, percentile


def test_percentiles_are_values_that_were_measured():
    values = [float(n) for n in range(100, 0, -1)]
    assert [percentile(values, p) for p in (50, 95, 99)] == [51.0, 96.0, 100.0]
    assert percentile([3.0], 99) == 3.0


def test_a_lost_stream_is_noticed(capsys):
    whole = Stream("large", 200, first=0.5, gaps=[0.1], whole=True)
    small = Stream("small", 200, first=0.7, gaps=[0.2], whole=True)
    assert report(2, [whole, small], 1.0, "web 100 MiB", 10)
    lost = Stream("small", 503, "server_overloaded", retry_after=True)
    assert not report(3, [whole, small, lost], 1.0, "web 100 MiB", 10)
    printed = capsys.readouterr().out
    assert "| 3 | small | 1/2 | 0.70 | 0.70 | 0.70 | 200 | 200 | 200 |" in printed
    assert "{'503 server_overloaded': 1}" in printed


def test_the_small_key_comes_behind_nine_tenths():
    wanted = mix(200, {"large": "sk-l", "small": "sk-s"})
    assert wanted == [("large", "sk-l")] * 180 + [("small", "sk-s")] * 20
