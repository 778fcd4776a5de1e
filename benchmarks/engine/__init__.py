"""The engine alone, without the service around it."""
