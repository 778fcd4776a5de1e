"""API keys and organizations: verify them, change them, audit the changes."""
