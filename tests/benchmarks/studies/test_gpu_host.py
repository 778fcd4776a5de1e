"""The benchmark of the host's share of a step: every kind of row, launched ahead."""

from benchmarks.studies import gpu_host
from benchmarks.studies.gpu_host import KINDS, make_engine, measure


def test_every_kind_of_row_is_measured(monkeypatch):
    monkeypatch.setattr(gpu_host, "NEW_TOKENS", 12)
    engine = make_engine(2)
    ahead = []
    prepare = engine.runner.prepare

    def watched(scheduled, last_tokens=None):
        ahead.append(last_tokens is not None)
        return prepare(scheduled, last_tokens)

    monkeypatch.setattr(engine.runner, "prepare", watched)
    for name, params in KINDS.items():
        ahead.clear()
        found = measure(engine, 2, name, params)
        assert found["step"] > 0
        assert sum(ahead) >= 8, name
    engine.stop()
