"""What every endpoint shares: the base view, API keys, JSON, errors, pages, the web process."""
