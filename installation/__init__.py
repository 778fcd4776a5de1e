"""Sets up `.venv` and checks the pins, with the standard library alone."""
