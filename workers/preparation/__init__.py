"""Model files become what an engine loads: fetched, converted, verified. No engine."""
