"""Benchmarks of Quire, in three kinds.

``peers`` compares with other engines. ``engine``, ``service`` and ``web`` guard what documents
promise: speed, latency, memory, fairness. ``studies`` answer questions about a design. `make bench`
runs the first two kinds.
"""
