"""The life of a job in Redis: submitted, claimed, published, ended, settled."""
