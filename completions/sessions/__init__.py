"""Sessions: their turns read, recorded and exported."""
