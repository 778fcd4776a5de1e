"""A constraint is translated, compiled and tried, within limits on time and memory."""
