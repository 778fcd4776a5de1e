"""The states of each sequence in convolutions and recurrences, beside the pages of attention."""
