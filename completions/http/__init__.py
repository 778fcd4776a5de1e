"""What all endpoints share: keys, strict JSON, errors, pages, and the state of one web process."""
