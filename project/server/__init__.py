"""The ASGI edge: HTTP protocol, gateway, handler and middleware."""
