"""One model on several devices: processes that each hold a part of its weights and of its cache.

A process is a rank. Rank 0 is the engine: it schedules and samples. The others are its child
processes, which compute what its plans say. Only here is ``torch.distributed`` used.
"""
