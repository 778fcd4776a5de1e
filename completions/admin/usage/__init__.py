"""Usage: the panel that explores it, and the table of hourly sums."""
