"""What is known of the lines of a batch that have ended: stored, indexed, searched, read."""
