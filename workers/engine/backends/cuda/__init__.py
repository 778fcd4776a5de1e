"""The engine on an NVIDIA GPU: cache, attention, runner and graphs beside those of the CPU.

Apart from graphs and memory, nothing here needs a GPU: tests run it on the CPU.
"""
