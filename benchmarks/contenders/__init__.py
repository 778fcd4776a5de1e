"""The programs that ``benchmarks.peers`` compares, each run as a process of its own.

These modules import nothing but the standard library and what they are about, so that each runs in
the virtual environment that has it.
"""
