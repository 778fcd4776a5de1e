"""The OpenAPI document, written from the request serializers and one table of operations."""
