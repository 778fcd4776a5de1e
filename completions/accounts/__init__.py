"""API keys and organizations: verifies them, changes them, and audits the changes."""
