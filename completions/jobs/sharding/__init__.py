"""Where the jobs of an installation with several shards lie, and who asks which of them."""
