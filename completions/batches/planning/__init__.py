"""What is known of a batch before it runs: the order of its lines, tokens, cost and time."""
