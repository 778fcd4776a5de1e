"""The OpenAPI document, written from the request fields and one table of operations."""
