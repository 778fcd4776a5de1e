"""Which sequences run in a step, and which blocks they hold. No tensors."""
