"""A follower that computes on the CPU what it would on a GPU."""

from workers.engine.backends.cuda.backend import CudaBackend
from workers.engine.checkpoints import loader
from workers.engine.follower import main

if __name__ == "__main__":
    loader.choose_backend = CudaBackend
    main()
