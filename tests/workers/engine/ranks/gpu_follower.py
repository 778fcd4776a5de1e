"""A follower that computes on the CPU what it would on a GPU."""

from workers.engine.loading import loader
from workers.engine.model.attention_backend import CudaBackend
from workers.engine.ranks.follower import main

if __name__ == "__main__":
    loader.backend_for = CudaBackend
    main()
