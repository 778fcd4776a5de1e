"""What all of the engine shares: requests, sequences, steps, and the interfaces of backends."""
