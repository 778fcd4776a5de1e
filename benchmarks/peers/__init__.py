"""Other engines on the same machine. Each contender is a process of its own.

A contender imports only the standard library, the protocol and the engine that it measures, so that
it runs in that engine's virtual environment.
"""
