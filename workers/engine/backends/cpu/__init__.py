"""The forward pass on a CPU in C, and packed weights for what it cannot compute."""
