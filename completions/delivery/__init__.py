"""From a validated request to a queued job, and from its events to an HTTP response."""
